// The devices of one rank, as the trainer sees them.
#pragma once

#include <vector>

#include "c10/core/Device.h"
#include "cohort/runtime/runtime.h"

namespace cohort::trainer {

// One device of this rank. `index` counts the rank's devices; the index-th devices of all ranks form device group
// `index`. Simulated devices all share the CPU (libtorch has one), which is why everything that belongs to a device
// (parts of a module, buckets, communicators) is keyed by the index and not by the torch::Device.
struct LocalDevice {
  int index = 0;
  c10::Device device = c10::Device(c10::kCPU);
};

// The rank's devices in order; one CPU device when the launcher assigned none.
std::vector<LocalDevice> LocalDevices(const runtime::Runtime& runtime);

}  // namespace cohort::trainer
