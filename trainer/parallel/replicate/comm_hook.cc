#include "cohort/trainer/parallel/replicate/comm_hook.h"

#include <string>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// All-reduces `carried`, and copies it into `target` if that is another tensor.
class AllReduceReduction : public GradReduction {
 public:
  AllReduceReduction(comm::Communicator& group, at::Tensor carried, const GradBucket& bucket)
      : carried_(std::move(carried)), target_(AsReals(bucket.buffer)), index_(bucket.index) {
    const comm::Buffer buffer = AsBuffer(carried_);
    work_ = AllReduce(group, buffer, buffer, comm::ReduceOp::kSum, bucket.tag);
  }
  // An error elsewhere may drop it: the memory must not go before the operation is done.
  ~AllReduceReduction() override {
    const absl::Status ignored = work_.Wait();
    (void)ignored;
  }
  void Wait() override {
    const at::NoGradGuard no_grad;
    ThrowUnlessOk(work_.Wait(), "averaging gradient bucket " + std::to_string(index_));
    if (!carried_.is_alias_of(target_)) target_.copy_(carried_);
  }

 private:
  at::Tensor carried_, target_;
  int index_;
  runtime::Work work_;
};

std::unique_ptr<GradReduction> Compressed(comm::Communicator& group, const GradBucket& bucket, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  at::Tensor carried = AsReals(bucket.buffer).div(group.size()).to(type);
  return std::make_unique<AllReduceReduction>(group, std::move(carried), bucket);
}

}  // namespace

std::unique_ptr<GradReduction> AllReduceHook::Start(comm::Communicator& group, const GradBucket& bucket) {
  const at::NoGradGuard no_grad;
  at::Tensor buffer = bucket.buffer;
  buffer.div_(group.size());
  return std::make_unique<AllReduceReduction>(group, buffer, bucket);
}

std::unique_ptr<GradReduction> Fp16CompressHook::Start(comm::Communicator& group, const GradBucket& bucket) {
  return Compressed(group, bucket, at::kHalf);
}

std::unique_ptr<GradReduction> Bf16CompressHook::Start(comm::Communicator& group, const GradBucket& bucket) {
  return Compressed(group, bucket, at::kBFloat16);
}

}  // namespace cohort::trainer
