// What programs keep beside the tensors of a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cohort/trainer/state/checkpoint/checkpoint.h"

namespace cohort::trainer {

// The value `key`, a whole number from 0 on. Throws DistributedError, which names it, where there is none.
int64_t WholeNumberOf(const CheckpointValues& values, const std::string& key);

// The value that has the other names of tensors that modules share, each with the name that the tensor is kept under.
inline constexpr const char* kCheckpointAliases = "model.aliases";
// What that value says of `aliases`, whose keys are the other names.
std::string AliasesText(const std::map<std::string, std::string>& aliases);
// Those of `values`; none where there is no such value. Throws DistributedError (kDataLoss) where it is no such text.
std::map<std::string, std::string> AliasesIn(const CheckpointValues& values);

}  // namespace cohort::trainer
