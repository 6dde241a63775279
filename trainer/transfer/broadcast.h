// One rank's values of many tensors for everybody, in few messages.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// Overwrites `tensors` with those of group rank `root`, packed by type and device into pieces of at most 250 MiB (as
// PyTorch does). Collective with tensors of equal types and shapes; blocks. Types that no collective knows (bool,
// float8) travel as bytes. `what` is said in errors. Throws DistributedError.
void BroadcastTensors(comm::Communicator& group, const std::vector<at::Tensor>& tensors, int root,
                      const std::string& what);

}  // namespace cohort::trainer
