#include "cohort/launcher/machine/simulated_devices.h"

#include <string>

namespace cohort::launcher {

std::vector<v1::Device> SimulatedDevices(int count) {
  std::vector<v1::Device> devices(count);
  for (int i = 0; i < count; ++i) {
    devices[i].set_kind(v1::Device::KIND_SIMULATED);
    devices[i].set_node_index(i);
    devices[i].set_id("sim:" + std::to_string(i));
  }
  return devices;
}

}  // namespace cohort::launcher
