// Which dimension of an activation is cut over the parallel group, as a tag of the tensor. Layers and losses choose by
// the tag of their input.
//
//   -1 (or 1)   the last dimension: this rank has some features or classes
//   0           the first dimension of a parameter's matrix in y = x A: RegisterParallelDim and user layers
//   none        whole
//
// C++ tensors carry no attributes, so tags lie in a table beside them. A tag belongs to the tensor's memory: views that
// leave the last dimension as it is (view, flatten of the others, detach) have it too, whereas in TorchShard they lose
// it. Results of other operations have no tag: register them again. A tag ends with the memory. Any thread may call
// these functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/pimpl.h"

namespace cohort::trainer::torchshard {

using ParallelDim = std::optional<int64_t>;

// Tags a tensor. Throws c10::Error for an undefined tensor and for other dimensions than -1, 0 and 1.
void register_parallel_dim(const at::Tensor& x, ParallelDim dim);
// Returns the tag; none for tensors that were never tagged. 1 is returned as -1.
ParallelDim get_parallel_dim(const at::Tensor& x);

namespace nn {

// A module that tags what passes through it, for Sequential.
class RegisterParallelDimImpl : public torch::nn::Module {
 public:
  explicit RegisterParallelDimImpl(ParallelDim dim = std::nullopt) : dim_(dim) {}
  at::Tensor forward(const at::Tensor& x) {
    register_parallel_dim(x, dim_);
    return x;
  }

 private:
  ParallelDim dim_;
};
TORCH_MODULE(RegisterParallelDim);

}  // namespace nn
}  // namespace cohort::trainer::torchshard
