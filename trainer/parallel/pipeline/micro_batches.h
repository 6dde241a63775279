// A batch in micro-batches, and the weight of each one's loss.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

// The loss of a micro-batch: a scalar, the mean over its valid targets.
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
// The number of valid targets of a micro-batch.
using ValidTargets = std::function<int64_t(const at::Tensor& target)>;

// Cuts a batch along dimension 0 into equal parts, which share its memory. Throws c10::Error if its rows can't be cut
// so: all micro-batches have equal sizes, because sizes are sent once a step.
std::vector<at::Tensor> SplitMicroBatches(const at::Tensor& batch, int micro_batches, const char* what);

// Each micro-batch's share of the valid targets of all. The sum of the losses times these is the loss of the whole
// batch. All are 0 if no target is valid.
std::vector<double> LossWeights(const std::vector<at::Tensor>& targets, const ValidTargets& valid);

// Counts targets: class indices (integers) other than `ignore_index`, or else rows.
int64_t CountValidTargets(const at::Tensor& target, int64_t ignore_index = -100);

}  // namespace cohort::trainer
