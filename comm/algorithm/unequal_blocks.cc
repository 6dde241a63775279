// The variable-count forms (gather_v, scatter_v, all_gather_v, reduce_scatter_v, all_to_all_v): the algorithms of the
// equal forms that never put two blocks into one message.
//
// Blocks have lengths and places of their own, and of gather_v, scatter_v and all_to_all_v a rank knows only those of
// its own blocks. So an algorithm serves them when every message is one block of the user's, which both its ends know:
// flat, ring and pairwise ones do; binomial trees, recursive doubling, Bruck's and the circulant ones do not, since
// they pass on blocks together, or blocks whose length the rank between does not know.
//
//   all_gather_v ring, lengths 3 0 1 2:   every rank r   p-1 times: send the newest block to r+1, receive from r-1
//
// Cost: as in the equal form's file, with n the mean length. Rounds are the same; a block of no elements is a message
// all the same, as it carries the signature.
// Any size. Source: the files named below.
#include "cohort/comm/algorithm/registry.h"

namespace cohort::comm {

#define COHORT_UNEQUAL_FORM(function, equal)                                         \
  Plan Build##equal(const PlanRequest& request);                                     \
  AlgorithmCost CostOf##equal(const CostQuery& query);                               \
  Plan Build##function(const PlanRequest& request) { return Build##equal(request); } \
  AlgorithmCost CostOf##function(const CostQuery& query) { return CostOf##equal(query); }

COHORT_UNEQUAL_FORM(GatherVFlat, GatherFlat)
COHORT_UNEQUAL_FORM(ScatterVFlat, ScatterFlat)
COHORT_UNEQUAL_FORM(AllGatherVFlat, AllGatherFlat)
COHORT_UNEQUAL_FORM(AllGatherVRing, AllGatherRing)
COHORT_UNEQUAL_FORM(ReduceScatterVFlat, ReduceScatterFlat)
COHORT_UNEQUAL_FORM(ReduceScatterVPairwise, ReduceScatterPairwise)
COHORT_UNEQUAL_FORM(AllToAllVFlat, AllToAllFlat)
COHORT_UNEQUAL_FORM(AllToAllVPairwise, AllToAllPairwise)
#undef COHORT_UNEQUAL_FORM

}  // namespace cohort::comm
