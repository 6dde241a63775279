#include "cohort/trainer/parallel/pipeline/shared_gradients.h"

#include <algorithm>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/transfer/broadcast.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {

SharedGradient::SharedGradient(std::string name, const std::vector<at::Tensor>& copies,
                               std::unique_ptr<comm::Communicator> group)
    : name_(std::move(name)), group_(std::move(group)) {
  for (const at::Tensor& copy : copies) {
    const bool known =
        std::any_of(copies_.begin(), copies_.end(), [&](const at::Tensor& each) { return each.is_same(copy); });
    if (!known) copies_.push_back(copy);
  }
}

void SharedGradient::Broadcast() {
  const at::NoGradGuard no_grad;
  if (group_ != nullptr) {
    BroadcastTensors(*group_, {copies_.front()}, 0, "Pipeline: sending the shared weight " + name_);
  }
  for (size_t i = 1; i < copies_.size(); ++i) copies_[i].copy_(copies_.front());
}

// In place, because a gradient may be a view of DistributedDataParallel's buckets.
void SharedGradient::Begin() {
  if (frozen()) return;
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
  if (frozen()) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const at::Tensor before = std::exchange(before_[i], at::Tensor());
    if (before.defined() && copies_[i].grad().defined()) copies_[i].mutable_grad().add_(before);
  }
}

void SharedGradient::Sum() {
  if (frozen()) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& copy : copies_) {
    if (!copy.grad().defined()) copy.mutable_grad() = at::zeros_like(copy);
  }
  at::Tensor& first = copies_.front().mutable_grad();
  for (size_t i = 1; i < copies_.size(); ++i) first.add_(copies_[i].grad().to(first.device()));
  if (group_ != nullptr) {
    const at::Tensor sum = first.contiguous().clone();
    ThrowUnlessAllCame(AllReduce(*group_, AsBuffer(sum), AsBuffer(sum), comm::ReduceOp::kSum).Wait(),
                       "Pipeline: adding the gradients of the shared weight " + name_);
    first.copy_(sum);
  }
  for (size_t i = 1; i < copies_.size(); ++i) copies_[i].mutable_grad().copy_(first);
}

void SharedGradient::Abort(const std::string& why) {
  if (group_ != nullptr) group_->Abort(why);
}

}  // namespace cohort::trainer
