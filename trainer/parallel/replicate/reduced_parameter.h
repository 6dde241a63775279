// ReducedParameter: a parameter that a Reducer averages.
#pragma once

#include <string>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

struct ReducedParameter {
  std::string name;
  at::Tensor tensor;    // a leaf that requires grad
  int device = 0;       // LocalDevice::index of the part that it belongs to
  bool sparse = false;  // its gradients are expected to be sparse: it has a bucket of its own, and no owner
  int owner = -1;  // the only rank whose .grad gets the average; -1: all ranks. All parameters have one, or none has
};

}  // namespace cohort::trainer
