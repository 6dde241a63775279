// The options of a plan as texts, which ranks compare.
#pragma once

#include <string>

#include "cohort/trainer/parallel/fsdp/fsdp_options.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"

namespace cohort::trainer {

// A line of all options. Two that differ have different texts, but for what differs between ranks of one job: the
// number of the device, and tensors and modules, of which the text has the number.
std::string ToText(const FullyShardedDataParallelOptions& options);
std::string ToText(const DistributedDataParallelOptions& options);

}  // namespace cohort::trainer
