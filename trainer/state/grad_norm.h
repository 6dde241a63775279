// Norms of gradients that are split among ranks, and clipping by them.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// The norm of all ranks' parts together, on the CPU, as float64 where some rank's part is that, else float32: this
// rank's parts' norm to the power `norm_type`, summed over each of `groups` in turn (the maximum for an infinite
// norm_type). A rank may have no parts. Collective; blocks. Throws DistributedError, and c10::Error for a norm_type
// that is not positive.
at::Tensor ShardedNorm(const std::vector<at::Tensor>& parts, double norm_type,
                       const std::vector<comm::Communicator*>& groups);

// Multiplies by max_norm / (norm + 1e-6) where that is below 1, in place, as torch's clip_grad_norm_ does.
void ClipByNorm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm);

}  // namespace cohort::trainer
