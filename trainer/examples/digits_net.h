// A small convolutional network for 8x8 digits, in two halves that may sit on two devices of a rank. No batch
// normalisation and no dropout: its gradient over a batch is the mean over any equal split of that batch. Smooth
// throughout (SiLU, average pooling), so that runs that differ in rounding stay close: a ReLU or a maximum that falls
// the other way at one image is a jump (1 % of the largest weight after 87 steps was seen).
#pragma once

#include "cohort/trainer/base/local_device.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/container/sequential.h"

namespace cohort::examples {

class DigitsNet : public torch::nn::Module {
 public:
  // `first` and `second` are the devices of the halves; they may be the same.
  DigitsNet(trainer::LocalDevice first, trainer::LocalDevice second);
  // images [batch, 1, 8, 8] -> log-probabilities [batch, 10] on the second half's device.
  at::Tensor forward(const at::Tensor& images);

  torch::nn::Sequential features{nullptr};    // [batch, 1, 8, 8] -> [batch, 512]
  torch::nn::Sequential classifier{nullptr};  // [batch, 512] -> [batch, 10]

 private:
  trainer::LocalDevice first_;
  trainer::LocalDevice second_;
};

}  // namespace cohort::examples
