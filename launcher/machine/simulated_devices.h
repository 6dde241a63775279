// Pretended GPUs (--simulate-gpus).
#pragma once

#include <vector>

#include "cohort/v1/agent.pb.h"

namespace cohort::launcher {

// `count` pretended GPUs in host memory: their indices on the node are 0 to count - 1.
std::vector<v1::Device> SimulatedDevices(int count);

}  // namespace cohort::launcher
