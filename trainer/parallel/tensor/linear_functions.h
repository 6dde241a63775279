// Linear functions whose weight is cut over a TensorAxis, with their gradients. Layers and functional forms of
// parallel linear layers call them.
#pragma once

#include <source_location>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"

namespace cohort::trainer {

// y = x A^T + b, where this rank has some rows of A and b: y has these features. x is whole on every rank, and its
// gradient is summed over the axis. With sequence parallelism x is this rank's part of the sequence, and y has the
// whole sequence; only the part is kept for backward, which gathers it again.
at::Tensor column_parallel_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                  const TensorAxis& axis, std::source_location site = std::source_location::current());
// y = x A^T, where this rank has some columns of A and these features of x. y is summed over the axis: whole on every
// rank, or with sequence parallelism this rank's part of the sequence. A bias is to be added once, to y.
at::Tensor row_parallel_linear(const at::Tensor& x, const at::Tensor& weight, const TensorAxis& axis,
                               std::source_location site = std::source_location::current());

// All ranks of the axis call both alike, forward and backward. They block. Under Autocast, input, weight and bias are
// cast first. They have no gradients of gradients. They throw DistributedError and c10::Error.

}  // namespace cohort::trainer
