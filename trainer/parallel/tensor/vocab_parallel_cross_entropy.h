// The cross entropy of logits whose classes are cut over a TensorAxis, after Megatron-LM. No rank has all logits, and
// nothing of their size is sent.
//
//   each rank    largest logit, sum of exponentials, the target's logit (and the sum of logits, for smoothing)
//   all-reduce   these: 4 bytes each for an example
//   backward     the exponentials become the gradient where they lie
//
// Memory beside logits of float or double: one buffer of their size from forward to backward, which is then their
// gradient. Logits of smaller types are kept themselves, and the gradient is made in backward: it is computed in float,
// some rows at a time, and rounded once. A one-hot matrix is never made.
#pragma once

#include <cstdint>

#include "ATen/core/Reduction.h"
#include "ATen/core/Tensor.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "torch/arg.h"
#include "torch/types.h"

namespace cohort::trainer {

// The options of torch::nn::functional::cross_entropy under their names, and the number of classes.
struct VocabParallelCrossEntropyOptions {
  // The weights of all classes, the same on every rank, of the logits' or float type. Undefined: each counts 1.
  TORCH_ARG(at::Tensor, weight) = {};
  TORCH_ARG(int64_t, ignore_index) = -100;
  TORCH_ARG(at::Reduction::Reduction, reduction) = at::Reduction::Mean;
  // Spread over all classes, not over those of a rank (Megatron-LM#737).
  TORCH_ARG(double, label_smoothing) = 0.0;
  // Classes of all ranks together. 0: all ranks have the same number.
  TORCH_ARG(int64_t, num_classes) = 0;
};

// Returns the loss of [..., this rank's classes] logits, cut as torch.chunk does, for [...] targets in the whole
// vocabulary, which are the same on every rank. The loss is the same on every rank: a scalar, or [...] with
// at::Reduction::None. It is float32 for logits of small types. Values are those of
// torch::nn::functional::cross_entropy on the whole logits.
//
// Collective over the axis; blocks. Backward sends nothing. It works once, because it overwrites what forward kept.
// There are no gradients of gradients. Throws DistributedError, and c10::Error for sizes that do not fit and, on the
// CPU, for a target outside of the vocabulary. On a device such a target makes its loss NaN.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const TensorAxis& axis,
                                        const VocabParallelCrossEntropyOptions& options = {});

}  // namespace cohort::trainer
