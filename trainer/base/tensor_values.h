// Views of a tensor's numbers, whatever its type and layout: complex ones as two real numbers, sparse ones as the
// values that they have.
#pragma once

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

// The real numbers of an element: 2 for complex types, otherwise 1.
int64_t RealsPerElement(at::ScalarType type);
// A complex tensor as a real one with a last dimension of 2, in the same memory; a copy if the tensor is lazily
// conjugated. Other tensors as they are.
at::Tensor AsReals(const at::Tensor& tensor);
// The numbers of a gradient as a real, dense tensor in the same memory, in no particular shape. A sparse gradient gives
// what it has, rows that it lists twice twice: coalesce it first where that matters.
at::Tensor ValuesOf(const at::Tensor& gradient);

// Refuses parameters that no step and no collective can treat as their elements: sparse ones, and ones whose elements
// share memory. Wrappers call it. Local. Throws c10::Error, which names `who` and the parameter.
void RefuseForm(const std::string& who, const std::string& name, const at::Tensor& parameter);

}  // namespace cohort::trainer
