// What a Reducer keeps for each bucket, and what autograd's hooks know of it. For its own sources.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/parallel/replicate/reducer.h"
#include "cohort/trainer/transfer/device_stream.h"

namespace cohort::trainer {

struct Reducer::Bucket {
  std::vector<int> members;
  at::TensorOptions options;
  int64_t elements = 0;  // of all members
  at::Tensor buffer;     // [elements]; with owners, only from the first gradient until it is reduced
  StreamChain streams;   // that fill it
  size_t pending = 0;
  comm::Communicator* group = nullptr;
  runtime::Work work;
  std::unique_ptr<GradReduction> reduction;  // instead, with a communication hook
  std::string context;                       // for errors
  // With owners: the members lie owner by owner.
  std::vector<int64_t> counts;  // elements, by owner
  int64_t first = 0;            // where this rank's begin
  at::Tensor owned;             // this rank's part, reduced
};

// Hooks may outlive the reducer (the graph keeps them); they find a null owner then. On CUDA they run on the engine's
// threads, one per device, hence the lock.
struct Reducer::Shared {
  runtime::Mutex mutex;
  Reducer* owner COHORT_GUARDED_BY(mutex) = nullptr;
};

}  // namespace cohort::trainer
