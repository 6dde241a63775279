#include "cohort/trainer/examples/digits_net.h"

#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::AvgPool2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Flatten;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::nn::SiLU;

DigitsNet::DigitsNet(trainer::LocalDevice first, trainer::LocalDevice second) : first_(first), second_(second) {
  features = register_module("features",
                             Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), SiLU(),
                                        Conv2d(Conv2dOptions(16, 32, 3).padding(1)), SiLU(), AvgPool2d(2), Flatten()));
  classifier = register_module("classifier", Sequential(Linear(32 * 4 * 4, 64), SiLU(), Linear(64, 10)));
  features->to(first_.device);
  classifier->to(second_.device);
}

at::Tensor DigitsNet::forward(const at::Tensor& images) {
  const at::Tensor hidden = features->forward(images.to(first_.device));
  return torch::log_softmax(classifier->forward(hidden.to(second_.device)), 1);
}

}  // namespace cohort::examples
