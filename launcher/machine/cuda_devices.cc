#include "cohort/launcher/machine/cuda_devices.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

// The few calls of NVML that are needed, by its stable ABI (nvml.h is not required to build).
struct Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_count)(unsigned*) = nullptr;
  int (*device_by_index)(unsigned, void**) = nullptr;
  int (*device_uuid)(void*, char*, unsigned) = nullptr;

  bool Open() {
    library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    return Load("nvmlInit_v2", &init) && Load("nvmlShutdown", &shutdown) &&
           Load("nvmlDeviceGetCount_v2", &device_count) && Load("nvmlDeviceGetHandleByIndex_v2", &device_by_index) &&
           Load("nvmlDeviceGetUUID", &device_uuid);
  }
  template <typename Function>
  bool Load(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(::dlsym(library, name));
    return *function != nullptr;
  }
  ~Nvml() {
    if (library != nullptr) ::dlclose(library);
  }
};

// NVML numbers devices in PCI order already.
std::vector<NvmlDevice> ListDevices() {
  std::vector<NvmlDevice> devices;
  Nvml nvml;
  if (!nvml.Open() || nvml.init() != 0) return devices;
  unsigned count = 0;
  if (nvml.device_count(&count) != 0) count = 0;
  for (unsigned i = 0; i < count; ++i) {
    void* device = nullptr;
    char uuid[96] = {};
    if (nvml.device_by_index(i, &device) != 0 || nvml.device_uuid(device, uuid, sizeof uuid) != 0) continue;
    devices.push_back({static_cast<int>(i), uuid});
  }
  nvml.shutdown();
  return devices;
}

v1::Device ToDevice(int node_index, const std::string& id) {
  v1::Device device;
  device.set_kind(v1::Device::KIND_CUDA);
  device.set_node_index(node_index);
  device.set_id(id);
  return device;
}

std::string Trim(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

absl::StatusOr<std::vector<v1::Device>> SelectVisibleDevices(const std::vector<NvmlDevice>& devices,
                                                             const std::optional<std::string>& visible) {
  std::vector<v1::Device> selected;
  if (!visible) {
    for (const NvmlDevice& device : devices) selected.push_back(ToDevice(device.index, device.uuid));
    return selected;
  }
  if (devices.empty()) return selected;
  size_t begin = 0;
  while (begin <= visible->size()) {
    const size_t comma = std::min(visible->find(',', begin), visible->size());
    const std::string token = Trim(visible->substr(begin, comma - begin));
    begin = comma + 1;
    if (token.empty() || token == "-1") break;  // CUDA stops at the first name that is none
    if (token.starts_with("MIG-")) {
      selected.push_back(ToDevice(static_cast<int>(selected.size()), token));
      continue;
    }
    int index = -1;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), index);
    const bool numeric = error == std::errc() && end == token.data() + token.size();
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const NvmlDevice& device) {
      return numeric ? device.index == index : device.uuid.starts_with(token);
    });
    if (found == devices.end()) {
      return InvalidArgumentError(Remedy::kNoSuchGpu, "CUDA_VISIBLE_DEVICES names '" + token +
                                                          "', but this machine has " + std::to_string(devices.size()) +
                                                          " GPUs, 0 to " + std::to_string(devices.size() - 1) +
                                                          "; correct it or unset it");
    }
    selected.push_back(ToDevice(found->index, found->uuid));
  }
  return selected;
}

absl::StatusOr<std::vector<v1::Device>> FindCudaDevices() {
  return SelectVisibleDevices(ListDevices(), GetVariable("CUDA_VISIBLE_DEVICES"));
}

std::string VisibleDevicesMask(const std::vector<v1::Device>& devices) {
  std::string mask;
  for (const v1::Device& device : devices) {
    if (!mask.empty()) mask += ",";
    // Numbers where there are any: not every program understands UUIDs.
    mask += device.id().starts_with("MIG-") ? device.id() : std::to_string(device.node_index());
  }
  return mask;
}

}  // namespace cohort::launcher
