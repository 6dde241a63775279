#include "cohort/trainer/parallel/replicate/gradient_order.h"

#include <algorithm>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {

void GradientOrder::Become(State next) {
  TORCH_INTERNAL_ASSERT(!agreed(), "the order of gradients is agreed on already");
  state_ = next;
}

void GradientOrder::BeginOwn() {
  if (agreed()) return;
  seen_.clear();
  Become(State::kOwn);
}

void GradientOrder::BeginShadow() {
  if (!agreed()) seen_.clear();
}

void GradientOrder::EndShadow() {
  if (!agreed()) Become(State::kOthers);
}

void GradientOrder::Saw(int parameter) {
  if (!agreed()) seen_.push_back(parameter);
}

bool GradientOrder::known() const {
  return parameters_ > 0 && !agreed() && (state_ == State::kOthers || seen_.size() == parameters_);
}

std::vector<int> GradientOrder::Agree(comm::Communicator& group, int root) {
  at::Tensor order = at::zeros({static_cast<int64_t>(parameters_)}, at::kLong);
  std::copy(seen_.begin(), seen_.end(), order.data_ptr<int64_t>());
  ThrowUnlessAllCame(Broadcast(group, AsBuffer(order), root).Wait(), "agreeing on the order of gradient buckets");
  seen_.clear();
  Become(State::kAgreed);
  const int64_t* data = order.data_ptr<int64_t>();
  return {data, data + order.numel()};
}

}  // namespace cohort::trainer
