#include "cohort/trainer/parallel/pipeline/shared_gradients.h"

#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/transfer/broadcast.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {

void SharedGradient::Broadcast() {
  const at::NoGradGuard no_grad;
  if (copies_.size() == 2 && !copies_[0].is_same(copies_[1])) copies_[1].copy_(copies_[0]);
  if (group_ != nullptr) BroadcastTensors(*group_, copies_, 0, "Pipeline: sending the shared weight " + name_);
}

// In place, because a gradient may be a view of DistributedDataParallel's buckets.
void SharedGradient::Begin() {
  const at::NoGradGuard no_grad;
  before_.assign(copies_.size(), at::Tensor());
  for (size_t i = 0; i < copies_.size(); ++i) {
    at::Tensor& gradient = copies_[i].mutable_grad();
    if (!gradient.defined()) continue;
    before_[i] = gradient.clone();
    gradient.zero_();
  }
}

void SharedGradient::End() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const at::Tensor before = std::exchange(before_[i], at::Tensor());
    if (before.defined() && copies_[i].grad().defined()) copies_[i].mutable_grad().add_(before);
  }
}

void SharedGradient::Sum() {
  const at::NoGradGuard no_grad;
  for (at::Tensor& copy : copies_) {
    if (!copy.grad().defined()) copy.mutable_grad() = at::zeros_like(copy);
  }
  if (copies_.size() == 2 && !copies_[0].is_same(copies_[1])) {
    copies_[0].mutable_grad().add_(copies_[1].grad());
    copies_[1].mutable_grad().copy_(copies_[0].grad());
  }
  if (group_ == nullptr) return;
  const at::Tensor sum = copies_.front().grad().contiguous().clone();
  ThrowUnlessAllCame(AllReduce(*group_, AsBuffer(sum), AsBuffer(sum), comm::ReduceOp::kSum).Wait(),
                     "Pipeline: adding the gradients of the shared weight " + name_);
  copies_.front().mutable_grad().copy_(sum);
}

}  // namespace cohort::trainer
