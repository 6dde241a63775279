// Copies between a whole tensor and a rank's part of it.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/placement/placement.h"

namespace cohort::trainer {

// Copies the boxes of `whole` into the rank's own tensor `part`, whose type and device may be others. Local. Throws
// c10::Error when a box does not lie within both.
void TakeBoxes(const at::Tensor& whole, const std::vector<Box>& boxes, at::Tensor part);
// Copies the rank's own tensor `part` into its boxes of `whole`. As above.
void PutBoxes(const at::Tensor& part, const std::vector<Box>& boxes, at::Tensor whole);

}  // namespace cohort::trainer
