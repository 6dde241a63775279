// Whether the ranks of a group have made the same model, and were set up alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// A line that CheckSameOnAllRanks compares.
std::string DescribeTensor(const std::string& name, c10::ScalarType type, const std::vector<int64_t>& sizes);

// One thing that ranks must have in common before the first step, such as {"mesh", "replicate=2, shard=2"},
// {"schedule", ...}, {"model", ...} or {"seed", "7"}. Values may be long: only their hashes travel while they agree.
struct SetupFact {
  std::string what;
  std::string value;
};
// Compares all facts in one call of 16 bytes a rank. If they differ, every rank throws DistributedError
// (kFailedPrecondition). It names `who`, the first rank that differs from rank 0, and each fact that differs with both
// values: the first line in which they differ. All ranks of `group` pass facts of the same names in the same order.
// No rank is left waiting. Collective; blocks, for default_timeout() (collectives.h) if a rank does not come.
void CheckSameSetup(comm::Communicator& group, const std::string& who, const std::vector<SetupFact>& facts);

// Compares the ranks' `lines`, such as those of DescribeTensor, as the fact "model".
void CheckSameOnAllRanks(comm::Communicator& group, const std::string& who, const std::vector<std::string>& lines);
// The fact "model" of these lines.
SetupFact ModelFact(const std::vector<std::string>& lines);

// Compares the elements of `tensors`, bit by bit, by 16 bytes of each rank. If they differ, every rank throws
// DistributedError (kFailedPrecondition) that names `who` and the first rank that differs from rank 0. Collective;
// blocks as CheckSameSetup.
void CheckSameValues(comm::Communicator& group, const std::string& who, const std::vector<at::Tensor>& tensors,
                     const std::string& remedy);

}  // namespace cohort::trainer
