// What programs keep beside the tensors of a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/checkpoint.h"

namespace cohort::trainer {

// The value `key`, a whole number from 0 on. Throws DistributedError, which names it, where there is none.
int64_t WholeNumberOf(const CheckpointValues& values, const std::string& key);

}  // namespace cohort::trainer
