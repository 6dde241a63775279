// Reductions of blocks of bytes that the layers below would cut into pieces. Every rank gets its part of all ranks'
// inputs (all-to-all), combines them in the order of ranks, and the parts go to the ranks that want them.
//
// N bytes on P ranks move 2 N (P - 1) / P bytes in and out of each rank for an all-reduce, half as many for a
// reduce-scatter or, on all but the root, a reduce. Short vectors are gathered whole and combined on each rank that
// wants the result: N (P - 1) bytes, in one call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cohort/comm/c/arguments.h"
#include "cohort/comm/c/cohort.h"
#include "cohort/comm/c/objects.h"
#include "cohort/comm/communicator.h"
#include "cohort/runtime/engine/work.h"

namespace cohort::comm::c {

struct BlockReduction {
  const char* function = "";
  CollectiveKind kind = CollectiveKind::kAllReduce;  // of those that reduce
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;                // blocks; of reduce-scatter: of each rank
  const int64_t* counts = nullptr;  // kReduceScatterV
  const int64_t* displacements = nullptr;
  int root = -1;
};

// Blocks until the other ranks have called, in the caller's thread. `work` is that of the last call, which reads memory
// that is added to `needs`. Returns the error of the arguments or of a call before the last. Without memory it aborts
// the group and throws.
cohort_status ReduceBlocks(Communicator& group, const BlockReduction& reduction, const PreparedOptions& prepared,
                           runtime::Work* work, Kept* needs);

}  // namespace cohort::comm::c
