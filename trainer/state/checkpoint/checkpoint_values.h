// Values that programs keep beside the tensors of a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cohort/trainer/state/checkpoint/checkpoint.h"

namespace cohort::trainer {

// Returns the value `key`, a whole number from 0 on. Throws DistributedError, which names it, if there is none.
int64_t WholeNumberOf(const CheckpointValues& values, const std::string& key);

// The key of the value with the other names of tensors that modules share. Each stands with the name that the tensor is
// kept under.
inline constexpr const char* kCheckpointAliases = "model.aliases";
// Writes `aliases`, whose keys are the other names, as that value.
std::string AliasesText(const std::map<std::string, std::string>& aliases);
// Reads the aliases in `values`, or none if there is no such value. Throws DistributedError (kDataLoss) for any other
// text.
std::map<std::string, std::string> AliasesIn(const CheckpointValues& values);

}  // namespace cohort::trainer
