// The cost model: what an algorithm takes on a group, predicted from its formula (AlgorithmCost) and a table of figures
// (comm/select/tuning.h). Hockney's alpha-beta-gamma, with what shared memory and shared CPUs add to it:
//
//   time = latency + data + arithmetic
//   latency     alpha a round and `message` for each further message of a rank; where ranks share CPUs, each round also
//               waits for the others to run
//   data        the bytes that pass one after another, message by message, each by the cheaper of two ways; where ranks
//               share CPUs, at least the bytes of all ranks divided by the CPUs, since CPUs move them
//   arithmetic  the bytes that are combined one after another, by the same rule
//
// Data that exceed the caches pass at another rate.
#pragma once

#include <cstdint>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/select/tuning.h"

namespace cohort::comm {

// The selector's view of a group. Equal on all of its members.
struct GroupTopology {
  int size = 1;
  int nodes = 1;          // hosts with members
  int smallest_node = 0;  // members on the host that has the fewest, and the most; 0: not known
  int largest_node = 0;
  double ranks_per_cpu = 1.0;  // of a group on one machine; above 1 the ranks take turns
  bool windows = false;        // buffers are taken to lie in windows rather than in private memory
  bool near_caches = false;    // on one machine: its level 3 caches are near ones (NearTuning)
};

// The predicted time of one algorithm with `pieces` pieces on a block of `bytes` bytes. Of a composition: the sum of
// its parts (composition_cost.h).
double PredictMicroseconds(const AlgorithmInfo& algorithm, int32_t pieces, int64_t bytes, const GroupTopology& topology,
                           const Tuning& tuning);

}  // namespace cohort::comm
