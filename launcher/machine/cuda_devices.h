// The node's CUDA devices, by NVML, which is opened at run time: without NVIDIA's driver there are none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::launcher {

// A device as NVML shows it, in PCI order.
struct NvmlDevice {
  int index = 0;
  std::string uuid;
};

// Every device that CUDA_VISIBLE_DEVICES leaves, in its order where it is set, else in PCI order. `id` is the device's
// UUID, or its token where the variable names something that NVML does not list (a MIG slice). Empty without a driver.
// kInvalidArgument when the variable names a device that does not exist.
absl::StatusOr<std::vector<v1::Device>> FindCudaDevices();

// The pure part: `visible` is the variable's value, or nothing when it is not set.
absl::StatusOr<std::vector<v1::Device>> SelectVisibleDevices(const std::vector<NvmlDevice>& devices,
                                                             const std::optional<std::string>& visible);

// The value of CUDA_VISIBLE_DEVICES by which a process sees exactly these (with CUDA_DEVICE_ORDER=PCI_BUS_ID).
std::string VisibleDevicesMask(const std::vector<v1::Device>& devices);

}  // namespace cohort::launcher
