// Norms of gradients that are split among ranks, and clipping by them.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// Returns the norm of all ranks' parts together, on the CPU. It is float64 if some rank's part is, otherwise float32.
// This rank's norm to the power `norm_type` is summed over each of `groups` in turn; an infinite norm_type takes the
// maximum. A rank may have no parts. Collective; blocks. Throws DistributedError. Throws c10::Error for a norm_type
// that is not positive.
at::Tensor ShardedNorm(const std::vector<at::Tensor>& parts, double norm_type,
                       const std::vector<comm::Communicator*>& groups);

// Multiplies the gradients in place by max_norm / (norm + 1e-6) if that is below 1, as torch's clip_grad_norm_ does.
void ClipByNorm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm);

}  // namespace cohort::trainer
