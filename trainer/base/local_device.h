// The devices of one rank, as the trainer sees them.
#pragma once

#include <vector>

#include "c10/core/Device.h"
#include "cohort/runtime/runtime.h"

namespace cohort::trainer {

// One device of this rank. `index` counts the rank's devices. The devices with the same `index` on all ranks form
// device group `index`. Simulated devices all share the CPU, because libtorch has only one. Parts of modules, buckets
// and communicators are therefore keyed by the index, not by the torch::Device.
struct LocalDevice {
  int index = 0;
  c10::Device device = c10::Device(c10::kCPU);
};

// Returns the rank's devices in order, or one CPU device when the launcher assigned none.
std::vector<LocalDevice> LocalDevices(const runtime::Runtime& runtime);

}  // namespace cohort::trainer
