// ResNet-50 (He et al. 2015) as torchvision has it, as a list of layers.
#pragma once

#include <cstdint>

#include "torch/nn/modules/container/sequential.h"

namespace cohort::examples {

// `width` is 64 in the paper; smaller models are quicker. Inputs are images of 3 channels; outputs `classes` scores.
torch::nn::Sequential MakeResNet50(int64_t classes, int64_t width = 64);

}  // namespace cohort::examples
