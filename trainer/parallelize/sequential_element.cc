#include "cohort/trainer/parallelize/sequential_element.h"

#include <algorithm>
#include <cstddef>

#include "torch/torch.h"

namespace cohort::trainer {

torch::nn::AnyModule& ElementOf(torch::nn::SequentialImpl& sequential, const std::string& child) {
  const auto children = sequential.named_children();  // in the order of elements
  const size_t elements = std::min(children.size(), sequential.size());
  for (size_t i = 0; i < elements; ++i) {
    if (children[i].key() == child) return *(sequential.begin() + static_cast<std::ptrdiff_t>(i));
  }
  TORCH_CHECK(false, "parallelize: a Sequential of ", sequential.size(), " elements has none of the name \"", child,
              "\"");
}

}  // namespace cohort::trainer
