// Whether the ranks of a group have made the same model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "c10/core/ScalarType.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// A line that CheckSameOnAllRanks compares.
std::string DescribeTensor(const std::string& name, c10::ScalarType type, const std::vector<int64_t>& sizes);

// Compares the ranks' `lines`, in order, by 16 bytes of each rank. If they differ, every rank throws DistributedError
// (kFailedPrecondition). It names `who`, the first rank that differs from rank 0, and the first differing line on both.
// No rank is left waiting. Collective; blocks, for default_timeout() (collectives.h) if a rank does not come.
void CheckSameOnAllRanks(comm::Communicator& group, const std::string& who, const std::vector<std::string>& lines);

}  // namespace cohort::trainer
