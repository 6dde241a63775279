// ElementOf finds an element of a Sequential by its name.
#pragma once

#include <string>

#include "torch/nn/modules/container/any.h"
#include "torch/nn/modules/container/sequential.h"

namespace cohort::trainer {

// Returns the element that is the child of this name. A name may be a number or, as in a Sequential that is made from
// an OrderedDict, any other. Throws c10::Error for a name without an element.
torch::nn::AnyModule& ElementOf(torch::nn::SequentialImpl& sequential, const std::string& child);

}  // namespace cohort::trainer
