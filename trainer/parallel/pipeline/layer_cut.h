// Cuts a list of layers into the stages of a pipeline.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/nn/modules/container/any.h"
#include "torch/nn/modules/container/sequential.h"

namespace cohort::trainer {

// A layer maps one tensor to one tensor. Its name is that in the whole model; it may have dots.
struct NamedLayer {
  std::string name;
  torch::nn::AnyModule module;
};

// The layers of a Sequential, which shares them. `prefix` is the Sequential's name in the whole model, if it has one.
std::vector<NamedLayer> LayersOf(const torch::nn::Sequential& model, const std::string& prefix = "");

// The first layer of each stage, and at the end the number of layers.
using LayerCut = std::vector<int>;

// Cuts layers of these weights into `stages` stages of at least one layer, so that the heaviest stage is as light as
// can be. Throws c10::Error for fewer layers than stages.
LayerCut CutEvenly(const std::vector<double>& weights, int stages);
// By the number of layers, and by that of their parameters.
LayerCut CutByNumber(const std::vector<NamedLayer>& layers, int stages);
LayerCut CutByParameters(const std::vector<NamedLayer>& layers, int stages);
// By time: runs the layers one after another on `input`, forward and backward, some times, and takes each layer's
// shortest time, with the work of devices. Gradients, buffers (statistics of BatchNorm) and torch's generators are
// afterwards as before, also after an exception. The ranks of a job may measure differently: let one measure, and
// broadcast the cut.
LayerCut CutByTime(const std::vector<NamedLayer>& layers, int stages, const at::Tensor& input, int repetitions = 5);

}  // namespace cohort::trainer
