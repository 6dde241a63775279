#include "cohort/trainer/base/tensor_values.h"

#include "ATen/ATen.h"
#include "ATen/MemoryOverlap.h"
#include "cohort/trainer/base/tensor_buffer.h"

namespace cohort::trainer {

int64_t RealsPerElement(at::ScalarType type) { return at::isComplexType(type) ? 2 : 1; }

at::Tensor AsReals(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

at::Tensor ValuesOf(const at::Tensor& gradient) {
  return AsReals(gradient.is_sparse() ? gradient._values().detach() : gradient.detach());
}

void RefuseForm(const std::string& who, const std::string& name, const at::Tensor& parameter) {
  TORCH_CHECK(parameter.layout() == at::kStrided, who, ": parameter ", name, " is ", parameter.layout(),
              ", and only dense parameters can be trained by several ranks: register to_dense() of it");
  TORCH_CHECK(at::has_internal_overlap(parameter) != at::MemOverlap::Yes, who, ": elements of parameter ", name,
              " share memory, as those of an expanded tensor do, so that none can be stepped by itself: register "
              "clone() of it");
  TORCH_CHECK(!parameter.requires_grad() || CanCarry(parameter.scalar_type()), who, ": the gradient of parameter ",
              name, " would be ", parameter.scalar_type(),
              ", which no collective adds up: train it in another type, or "
              "freeze it");
}

}  // namespace cohort::trainer
