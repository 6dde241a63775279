// Parameters of layers that cut them: registered in the table of placements, with initial values that do not depend on
// the number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "cohort/trainer/placement/placement.h"
#include "cohort/trainer/state/sharded_init.h"

namespace cohort::trainer {

// Returns the placement of a parameter of `sizes` that is cut over the axis. Throws c10::Error if the cut does not fit.
Placement CutOver(const TensorAxis& axis, std::vector<int64_t> sizes, const Cut& cut, const std::string& name);

// Draws this rank's part of a parameter by `rule`. Values depend on torch's generator and the place of each element in
// the whole, so that any number of ranks whose generators are alike get one process's. It takes one number from the
// generator on every rank. Parameters without memory (DeferredInit) stay as they are.
void DrawPart(at::Tensor part, const Placement& placement, const InitRule& rule);

// Cuts a whole parameter where it is: it keeps this rank's part of its values and stays the same tensor, so that
// optimizers know it. Enters it in the table of placements. Local. Throws c10::Error for a parameter of other sizes
// than the placement's whole.
void CutInPlace(at::Tensor parameter, const Placement& placement);

// For a parameter that every rank of the axis has, and whose gradient on each is a term of a sum: norms and biases
// between layers that are sequence-parallel (Megatron-LM#1446). Enters it in the table of placements as partial, and
// lets backward add its gradient up over the axis before it is accumulated. Does nothing on an axis of one rank. The
// axis's group must outlive backward passes. Throws c10::Error where the table has it otherwise.
void SumGradientOver(const TensorAxis& axis, const at::Tensor& parameter);

}  // namespace cohort::trainer
