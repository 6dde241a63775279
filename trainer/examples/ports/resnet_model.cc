#include "cohort/trainer/examples/ports/resnet_model.h"

#include "torch/torch.h"

namespace cohort::examples {
namespace {

using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

Conv2d Convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  return Conv2d(Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct Bottleneck : torch::nn::Module {
  static constexpr int64_t kExpansion = 4;

  Bottleneck(int64_t in, int64_t planes, int64_t stride)
      : conv1(register_module("conv1", Convolution(in, planes, 1))),
        conv2(register_module("conv2", Convolution(planes, planes, 3, stride))),
        conv3(register_module("conv3", Convolution(planes, planes * kExpansion, 1))),
        bn1(register_module("bn1", BatchNorm2d(planes))),
        bn2(register_module("bn2", BatchNorm2d(planes))),
        bn3(register_module("bn3", BatchNorm2d(planes * kExpansion))) {
    if (stride == 1 && in == planes * kExpansion) return;
    downsample = register_module("downsample", torch::nn::Sequential(Convolution(in, planes * kExpansion, 1, stride),
                                                                     BatchNorm2d(planes * kExpansion)));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = bn3(conv3(torch::relu(bn2(conv2(torch::relu(bn1(conv1(x))))))));
    return torch::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
  }

  Conv2d conv1, conv2, conv3;
  BatchNorm2d bn1, bn2, bn3;
  torch::nn::Sequential downsample{nullptr};
};

}  // namespace

torch::nn::Sequential MakeResNet50(int64_t classes, int64_t width) {
  torch::nn::Sequential layers(Convolution(3, width, 7, 2), BatchNorm2d(width), torch::nn::ReLU(),
                               torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t in = width, planes = width;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int i = 0; i < blocks; ++i) {
      layers->push_back(Bottleneck(in, planes, i == 0 && planes > width ? 2 : 1));
      in = planes * Bottleneck::kExpansion;
    }
    planes *= 2;
  }
  layers->push_back(torch::nn::AdaptiveAvgPool2d(torch::nn::AdaptiveAvgPool2dOptions(1)));
  layers->push_back(torch::nn::Flatten());
  layers->push_back(torch::nn::Linear(in, classes));
  return layers;
}

}  // namespace cohort::examples
