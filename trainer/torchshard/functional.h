// Functional forms of TorchShard's layers and loss. They choose by `dim` and by the tags of their inputs
// (parallel_dim.h), and tag their results. All ranks of the group call them alike, forward and backward. They block.
// They throw DistributedError and c10::Error.
#pragma once

#include <cstdint>
#include <optional>

#include "ATen/core/Reduction.h"
#include "ATen/core/Tensor.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_cross_entropy.h"
#include "cohort/trainer/torchshard/parallel_dim.h"

namespace cohort::trainer::torchshard::nn::functional {

// y = x A + b, where `weight` is A transposed, as torch's. `dim` is the dimension of A that is cut:
//
//   none   torch's linear
//   1, -1  columns: [out / n, in] weight, [out / n] bias; x is whole; y has this rank's features and is tagged -1
//   0      rows: [out, in / n] weight, whole bias; x is cut here unless it is tagged -1; y is whole
at::Tensor parallel_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                           ParallelDim dim = std::nullopt);

// dim none: torch's embedding. 0: rows of the table are cut, `num_embeddings` in all, and y is the sum. 1, -1: features
// are cut, `embedding_dim` in all, and y is gathered. y is whole on every rank. If dim is given, all ranks of the group
// need the same tokens (distributed::gather(tokens, 0)): y would otherwise mix rows of different tokens. The layer
// compares them on its first call; this function does not.
at::Tensor parallel_embedding(const at::Tensor& tokens, const at::Tensor& weight, ParallelDim dim,
                              int64_t num_embeddings, int64_t embedding_dim,
                              std::optional<int64_t> padding_idx = std::nullopt);

// The loss of logits tagged -1 without gathering them; of others torch's cross_entropy. Options count for both; if
// num_classes is 0 all ranks have the same number of classes.
//
// Logits that are cut but have lost their tag (parallel_dim.h) are refused where they can be told from whole ones:
//
//   num_classes or weight is given   they have fewer classes than these say
//   neither, targets on the CPU      a target is none of their classes
//
// Set num_classes: without it a batch whose targets all are among the first rank's classes passes for whole logits.
// Targets on a device are not looked at; torch itself ends the program for one that is out of range.
at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                  const VocabParallelCrossEntropyOptions& options = {});

}  // namespace cohort::trainer::torchshard::nn::functional
