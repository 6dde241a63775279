#include "cohort/launcher/machine/inventory.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "cohort/launcher/base/net/host_name.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/launcher/machine/cuda_devices.h"
#include "cohort/launcher/machine/networks.h"
#include "cohort/launcher/machine/numa_nodes.h"
#include "cohort/launcher/machine/simulated_devices.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMaxName = 255;
constexpr size_t kMaxWords = 2000;
constexpr char kMark[] = "cohort-inventory ";

// Nothing where these are no groups of the node's CPUs, each CPU in one: then it has told nothing of them.
std::vector<std::vector<int>> ReadGroups(const google::protobuf::RepeatedPtrField<std::string>& lists,
                                         const std::vector<int>& cpus) {
  std::vector<std::vector<int>> groups;
  std::vector<int> all;
  for (const std::string& list : lists) {
    const absl::StatusOr<std::vector<int>> group = ParseCpuList(list);
    if (!group.ok() || group->empty() || all.size() + group->size() > cpus.size()) return {};
    all.insert(all.end(), group->begin(), group->end());
    groups.push_back(*group);
  }
  std::sort(all.begin(), all.end());
  return all == cpus ? groups : std::vector<std::vector<int>>();
}

}  // namespace

v1::NodeInventory TakeInventory() {
  v1::NodeInventory inventory;
  inventory.set_version(COHORT_VERSION);
  inventory.set_host(HostName());
  inventory.set_cpus(FormatCpuList(AvailableCpus()));
  for (const std::vector<int>& core : AvailableCores()) inventory.add_cores(FormatCpuList(core));
  for (const std::vector<int>& node : FindNumaNodes(AvailableCpus())) inventory.add_numa_nodes(FormatCpuList(node));
  for (const std::string& network : OwnNetworks()) inventory.add_networks(network);
  const auto devices = FindCudaDevices();
  if (devices.ok()) {
    *inventory.mutable_devices() = {devices->begin(), devices->end()};
  } else {
    inventory.set_error(TextOf(devices.status()));
  }
  return inventory;
}

std::string FormatInventory(const v1::NodeInventory& inventory) {
  return "\n" + (kMark + absl::BytesToHexString(inventory.SerializeAsString())) + "\n";
}

absl::StatusOr<v1::NodeInventory> ParseInventory(const std::string& output) {
  const size_t mark = output.rfind(std::string("\n") + kMark);
  if (mark == std::string::npos) return absl::NotFoundError("said nothing about itself");
  const size_t begin = mark + sizeof kMark;  // the newline counts for the terminating zero
  const std::string digits = output.substr(begin, output.find('\n', begin) - begin);
  const bool whole = digits.size() % 2 == 0 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  v1::NodeInventory inventory;
  if (!whole || output.find('\n', begin) == std::string::npos ||
      !inventory.ParseFromString(absl::HexStringToBytes(digits))) {
    return absl::InvalidArgumentError("says about itself what is damaged");
  }
  // All of it is shown to people, and the host's name becomes the node's.
  inventory.set_host(Printable(inventory.host(), kMaxName));
  inventory.set_version(Printable(inventory.version(), kMaxName));
  inventory.set_error(Printable(inventory.error(), kMaxWords));
  for (std::string& network : *inventory.mutable_networks()) network = Printable(network, kMaxName);
  for (v1::Device& device : *inventory.mutable_devices()) device.set_id(Printable(device.id(), kMaxName));
  return inventory;
}

absl::StatusOr<NodeResources> ResourcesOf(const v1::NodeInventory& inventory, const Options& options,
                                          const std::string& name) {
  if (inventory.version() != COHORT_VERSION) {
    return InvalidArgumentError(Remedy::kOtherVersion, "has dlaunch " + inventory.version() +
                                                           ", here it is " COHORT_VERSION
                                                           "; install the same, or name another with "
                                                           "--agent-path");
  }
  if (!inventory.error().empty()) return absl::InvalidArgumentError("can't take part: " + inventory.error());
  if (!options.interface.empty()) {
    COHORT_RETURN_IF_ERROR(CheckNetwork(options.interface, {inventory.networks().begin(), inventory.networks().end()}));
  }
  const absl::StatusOr<std::vector<int>> cpus = ParseCpuList(inventory.cpus());
  if (!cpus.ok()) {
    return absl::InvalidArgumentError("tells its CPUs wrongly: " + std::string(cpus.status().message()));
  }
  NodeResources node{.name = name, .devices = {}, .cpus = *cpus};
  node.cores = ReadGroups(inventory.cores(), *cpus);
  if (!node.cores.empty()) {
    node.cpus.clear();  // neighbours next to each other
    for (const std::vector<int>& core : node.cores) node.cpus.insert(node.cpus.end(), core.begin(), core.end());
  }
  node.numa_nodes = ReadGroups(inventory.numa_nodes(), *cpus);
  if (options.simulate_gpus) {
    node.devices = SimulatedDevices(*options.simulate_gpus);
  } else {
    node.devices = {inventory.devices().begin(), inventory.devices().end()};
  }
  return node;
}

int PrintInventory() {
  const std::string text = FormatInventory(TakeInventory());
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? 0 : kExitLauncher;
}

}  // namespace cohort::launcher
