// Communication hooks of DistributedDataParallel, after torch.distributed.algorithms.ddp_comm_hooks: what is done with
// a full bucket of gradients instead of the plain all-reduce.
//
//   ddp.register_comm_hook(std::make_shared<Bf16CompressHook>());
//
// The hook owns the division by the world size: gradients reach it as they are.
#pragma once

#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// One bucket, full. All of it stays valid until the reduction has been waited for.
struct GradBucket {
  int index = 0;  // of all buckets, in the order of their launch
  bool is_last = false;
  at::Tensor buffer;                   // flat; holds this rank's gradients
  std::vector<at::Tensor> gradients;   // views of it, in the parameters' shapes
  std::vector<at::Tensor> parameters;  // whose gradients they are
};

// A reduction under way.
class GradReduction {
 public:
  virtual ~GradReduction() = default;
  // Blocks until the bucket's buffer holds what .grad shall become. May start further collectives: buckets are waited
  // for in the order of their index on every rank, after the last of them has been launched. Called once. Throws
  // DistributedError.
  virtual void Wait() = 0;
};

class CommHook {
 public:
  virtual ~CommHook() = default;
  // Starts reducing the bucket over `group`; must not block on peers. The calls and their collectives must be the same
  // on every rank. Called by the thread that runs backward. What it throws ends the step on all ranks, as what Wait
  // throws does: here it leaves backward() as it is if it is a c10::Error, else as a DistributedError with its text.
  virtual std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) = 0;
};

// What DDP does without a hook: divide, then all-reduce (allreduce_hook).
class AllReduceHook : public CommHook {
 public:
  std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) override;
};

// Gradients travel as fp16, divided by the world size before they are rounded (fp16_compress_hook). Half the bytes.
class Fp16CompressHook : public CommHook {
 public:
  std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) override;
};

// The same as bf16 (bf16_compress_hook): fp32's range with 8 bits of precision.
class Bf16CompressHook : public CommHook {
 public:
  std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) override;
};

}  // namespace cohort::trainer
