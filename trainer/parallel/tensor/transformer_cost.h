// The memory that a ParallelTransformerBlock keeps for its backward pass and what it sends, from its sizes alone. For
// rows of the batch b, a sequence of s, of which a rank has s' between the layers (all of it without sequence
// parallelism), width h, and on this rank a heads with w features together and f hidden features, it keeps
//
//   4 b s' (h + 1)      inputs and results of both norms; their means and deviations
//   4 b s w             queries, keys, values, and what the heads attend to
//   2 b s f             before and after GELU
//   a b s^2             attention weights
//   2 b s' h, 2 a b s^2 factors of dropout; with attention dropout the weights that are left
//
// elements, and s^2 bytes of the causal mask. After Korthikanti et al., "Reducing Activation Recomputation in Large
// Transformer Models" (2022), which has fewer where kernels are fused.
#pragma once

#include <cstdint>

#include "cohort/trainer/parallel/tensor/parallel_transformer_block.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"

namespace cohort::trainer {

struct ActivationSizes {
  int64_t rows = 1;    // of the batch, on this rank
  int64_t length = 1;  // of the whole sequence
  int64_t element_bytes = 4;
};

// The bytes that this rank of the axis keeps from forward to backward, the block's input among them and its output not.
int64_t BlockActivationBytes(const ParallelTransformerBlockOptions& options, const TensorAxis& axis,
                             const ActivationSizes& sizes);

// Bytes of whole vectors, as the ledger counts them (transfer/communication_ledger.h).
struct AxisTraffic {
  int64_t all_reduced = 0;
  int64_t gathered = 0;
  int64_t scattered = 0;  // by reduce-scatters

  AxisTraffic& operator+=(const AxisTraffic& other);
  // The bytes that each of `ranks` ranks sends for it.
  int64_t SentByEach(int ranks) const;
};
// The traffic of the axis for one block in a forward and a backward pass; `recomputed`: backward runs forward again.
AxisTraffic BlockTraffic(const ParallelTransformerBlockOptions& options, const TensorAxis& axis,
                         const ActivationSizes& sizes, bool recomputed = false);

}  // namespace cohort::trainer
