// The same measurements through a Communicator, with all its layers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "cohort/comm/types.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/runtime.h"
#include "tools/bench/pinned_pair.h"

namespace cohort::bench {

// All-reduce of float32, out of place, private memory.
Statistics CommunicatorAllReduce(size_t bytes, bool gated, int calls);

// Ends the program unless `status` is OK.
void Require(const absl::Status& status);

// A store in the two processes' shared memory, and the runtime of one of them that joins through it.
std::unique_ptr<runtime::KeyValueStore> MakeStore(SharedState& shared);
std::unique_ptr<runtime::Runtime> InitRuntime(runtime::KeyValueStore& store, int rank);

// One collective of float32 (sum, root 0), each call behind a gate.
struct CollectiveRow {
  comm::CollectiveKind kind = comm::CollectiveKind::kAllReduce;
  size_t bytes = 0;  // of the call's block
  bool window = false;
  bool in_place = false;
  bool fresh = false;     // every rank writes its whole input before each gate
  std::string algorithm;  // empty: the selector's
  int calls = 100;
};
Statistics MeasureCollective(const CollectiveRow& row);

}  // namespace cohort::bench
