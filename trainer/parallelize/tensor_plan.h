// A plan that cuts the layers of a model over a tensor axis, by the layers' names, after PyTorch's parallelize_module.
//
// clang-format off
//   TensorPlan plan = {{"tokens", RowwiseParallel()},
//                      {"blocks.*.qkv", ColwiseParallel().blocks({width, width, width}).unit(head)},
//                      {"blocks.*.out", RowwiseParallel().unit(head)},
//                      {"blocks.*.up", ColwiseParallel()},
//                      {"blocks.*.down", RowwiseParallel()}};
// clang-format on
//
// A layer that takes the features of a cut one has its unit too: heads need not divide by the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "torch/arg.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// Output features are cut: ColumnParallelLinear. Not for embeddings.
struct ColwiseParallel {
  // Every rank gets all features (output_layouts=Replicate() in PyTorch).
  TORCH_ARG(bool, gather_output) = false;
  // Lengths of fused parts that are cut one by one, and features that stay together (ColumnParallelLinearOptions).
  TORCH_ARG(std::vector<int64_t>, blocks) = {};
  TORCH_ARG(int64_t, unit) = 1;
};
// Input features are cut, or an embedding's rows: RowParallelLinear and VocabParallelEmbedding.
struct RowwiseParallel {
  // False: the input is whole (input_layouts=Replicate() in PyTorch).
  TORCH_ARG(bool, input_is_parallel) = true;
  TORCH_ARG(int64_t, unit) = 1;
};

// Patterns of layers' names, and how these are cut. "*" stands for any characters but ".". The first pattern that fits
// a name counts.
using TensorPlan = std::vector<std::pair<std::string, std::variant<ColwiseParallel, RowwiseParallel>>>;

// Whether `pattern` stands for `name`.
bool FitsPattern(const std::string& pattern, const std::string& name);

// Cuts the layers of `model` that the plan names, where they are: they keep this rank's part of their values, and their
// parameters stay the same tensors, of the same type and device, frozen or not, and shared by the same layers. All
// ranks of the axis must have the same values. Layers are nn::Linear and nn::Embedding of the trainer, and
// torch::nn::Linear in a Sequential, whose place a parallel layer takes: C++ can't replace a typed member. On an axis
// of one rank they become parallel layers too, so that activations and masks of dropout are the same on any mesh.
// Local. Returns the names of the layers that were cut.
//
// Throws c10::Error, before anything is cut: for a pattern that fits no layer; for a layer of another kind, one that is
// cut already or has an adapter; for layers that share a parameter and are not cut alike. It names the layers.
std::vector<std::string> CutLayers(torch::nn::Module& model, const TensorPlan& plan, const TensorAxis& axis);

}  // namespace cohort::trainer
