#include "cohort/trainer/nn/adaptable_layer.h"

#include "torch/torch.h"

namespace cohort::trainer::nn {

at::Tensor AdaptableLayer::WithAdapter(const at::Tensor& output, const at::Tensor& input) {
  return adapter_ == nullptr ? output : output + adapter_->forward(*this, input).to(output.scalar_type());
}

}  // namespace cohort::trainer::nn
