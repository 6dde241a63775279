// Communication hooks of DistributedDataParallel, after torch.distributed.algorithms.ddp_comm_hooks. A hook reduces
// full buckets of gradients instead of the plain all-reduce.
//
//   ddp.register_comm_hook(std::make_shared<Bf16CompressHook>());
//
// The hook divides by the world size: gradients reach it as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// One full bucket. All of it stays valid until the reduction has been waited for.
struct GradBucket {
  int index = 0;  // in the order in which buckets are launched
  bool is_last = false;
  uint64_t tag = 0;                    // for its collectives: the bucket and the iteration (comm::CallOptions::tag)
  at::Tensor buffer;                   // flat; holds this rank's gradients
  std::vector<at::Tensor> gradients;   // views of the buffer, in the parameters' shapes
  std::vector<at::Tensor> parameters;  // the parameters that they belong to
};

// A reduction under way.
class GradReduction {
 public:
  virtual ~GradReduction() = default;
  // Blocks until the bucket's buffer holds the values for .grad. May start further collectives: every rank waits for
  // buckets in the order of their index, after the last one has been launched. Called once. Throws DistributedError.
  virtual void Wait() = 0;
};

class CommHook {
 public:
  virtual ~CommHook() = default;
  // Starts reducing the bucket over `group`; must not block on peers. The calls and their collectives must be the same
  // on every rank. The thread that runs backward calls it. An exception of it or of Wait ends the step on all ranks.
  // Here a c10::Error leaves backward() as it is, and another exception as a DistributedError with its text.
  virtual std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) = 0;
};

// Divides, then all-reduces, as DDP does without a hook (allreduce_hook).
class AllReduceHook : public CommHook {
 public:
  std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) override;
};

// Sends gradients as fp16, which halves the bytes. It divides by the world size before it rounds (fp16_compress_hook).
class Fp16CompressHook : public CommHook {
 public:
  std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) override;
};

// Sends gradients as bf16 (bf16_compress_hook), which has fp32's range and 8 bits of precision.
class Bf16CompressHook : public CommHook {
 public:
  std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) override;
};

}  // namespace cohort::trainer
