#include "cohort/trainer/base/local_device.h"

namespace cohort::trainer {

std::vector<LocalDevice> LocalDevices(const runtime::Runtime& runtime) {
  std::vector<LocalDevice> devices;
  for (const runtime::Device& device : runtime.devices()) {
    const bool cuda = device.kind == runtime::DeviceKind::kCuda;
    // The launcher's mask makes the rank's k-th device the process' k-th CUDA ordinal.
    devices.push_back({device.index, cuda ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device.index))
                                          : c10::Device(c10::kCPU)});
  }
  if (devices.empty()) devices.push_back(LocalDevice{});
  return devices;
}

}  // namespace cohort::trainer
