#include "cohort/trainer/placement/box_copy.h"

#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// The part of `tensor` that begins at `offset` and has these sizes. narrow() checks that there is such a part.
at::Tensor Part(at::Tensor tensor, const std::vector<int64_t>& offset, const std::vector<int64_t>& sizes) {
  TORCH_CHECK(tensor.dim() == static_cast<int64_t>(sizes.size()), "a box of ", sizes.size(),
              " dimensions is none of a tensor of ", tensor.dim());
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    tensor = tensor.narrow(static_cast<int64_t>(dim), offset[dim], sizes[dim]);
  }
  return tensor;
}

}  // namespace

void TakeBoxes(const at::Tensor& whole, const std::vector<Box>& boxes, at::Tensor part) {
  const at::NoGradGuard no_grad;
  for (const Box& box : boxes) Part(part, box.local, box.sizes).copy_(Part(whole, box.offset, box.sizes));
}

void PutBoxes(const at::Tensor& part, const std::vector<Box>& boxes, at::Tensor whole) {
  const at::NoGradGuard no_grad;
  for (const Box& box : boxes) Part(whole, box.offset, box.sizes).copy_(Part(part, box.local, box.sizes));
}

}  // namespace cohort::trainer
