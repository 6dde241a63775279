#include "cohort/runtime/bootstrap/welcome.h"

#include <cstddef>
#include <cstdint>

#include "cohort/runtime/segment/agent_protocol.h"

namespace cohort::runtime {
namespace {

constexpr uint32_t kMostWorld = 1u << 24;
constexpr uint32_t kMostDevices = 1024;

}  // namespace

absl::Status BadWelcome(const std::string& what) {
  return absl::InternalError("the agent's welcome makes no sense: " + what);
}

absl::Status AddNodes(const google::protobuf::RepeatedPtrField<v1::Node>& nodes, Identity* identity) {
  for (const v1::Node& node : nodes) {
    const int64_t next =
        identity->nodes.empty() ? 0 : int64_t{identity->nodes.back().first_rank} + identity->nodes.back().rank_count;
    if (node.first_rank() != next || node.rank_count() < 1 || next + node.rank_count() > identity->world_size ||
        node.index() != identity->nodes.size()) {
      return BadWelcome("node " + std::to_string(node.index()) + " does not follow the one before it");
    }
    identity->nodes.push_back(NodeInfo{static_cast<int>(node.index()), node.name(), static_cast<int>(node.first_rank()),
                                       static_cast<int>(node.rank_count())});
  }
  return absl::OkStatus();
}

absl::StatusOr<Identity> ReadWelcome(const v1::Welcome& welcome) {
  if (welcome.protocol() != kAgentProtocol) {
    return absl::FailedPreconditionError("the agent speaks version " + std::to_string(welcome.protocol()) +
                                         " of its protocol and this program version " + std::to_string(kAgentProtocol) +
                                         "; build both from one version of cohort");
  }
  if (welcome.world_size() < 1 || welcome.world_size() > kMostWorld || welcome.rank() >= welcome.world_size()) {
    return BadWelcome("rank " + std::to_string(welcome.rank()) + " of " + std::to_string(welcome.world_size()));
  }
  if (welcome.local_world_size() < 1 || welcome.local_world_size() > static_cast<uint32_t>(kMaxLocalRanks) ||
      welcome.local_rank() >= welcome.local_world_size()) {
    return BadWelcome("local rank " + std::to_string(welcome.local_rank()));
  }
  if (welcome.devices_per_rank() > kMostDevices || welcome.devices_size() > static_cast<int>(kMostDevices)) {
    return BadWelcome("too many devices");
  }
  Identity identity;
  identity.job_id = welcome.job_id();
  identity.epoch = welcome.epoch();
  identity.rank = static_cast<int>(welcome.rank());
  identity.world_size = static_cast<int>(welcome.world_size());
  identity.node = static_cast<int>(welcome.node());
  identity.local_rank = static_cast<int>(welcome.local_rank());
  identity.local_world_size = static_cast<int>(welcome.local_world_size());
  identity.devices_per_rank = static_cast<int>(welcome.devices_per_rank());
  for (const v1::Device& device : welcome.devices()) {
    const DeviceKind kind = device.kind() == v1::Device::KIND_CUDA ? DeviceKind::kCuda : DeviceKind::kSimulated;
    identity.devices.push_back(
        Device{static_cast<int>(device.index()), kind, static_cast<int>(device.node_index()), device.id()});
  }
  identity.job_secret = welcome.job_secret();
  identity.data_interface_ip = welcome.data_interface_ip();
  identity.nodes_share_host = welcome.nodes_share_host();
  return identity;
}

// The nodes cover the world, and this rank lies where it should.
absl::Status CheckNodes(const Identity& identity) {
  const auto index = static_cast<size_t>(identity.node);
  if (index >= identity.nodes.size()) return BadWelcome("node " + std::to_string(identity.node) + " is not listed");
  const NodeInfo& last = identity.nodes.back();
  const NodeInfo& own = identity.nodes[index];
  if (last.first_rank + last.rank_count != identity.world_size) return BadWelcome("nodes do not cover the world");
  if (own.first_rank + identity.local_rank != identity.rank || own.rank_count != identity.local_world_size) {
    return BadWelcome("this rank is not on its node");
  }
  return absl::OkStatus();
}

v1::Welcome WriteWelcome(const Identity& identity) {
  v1::Welcome welcome;
  welcome.set_protocol(kAgentProtocol);
  welcome.set_job_id(identity.job_id);
  welcome.set_epoch(identity.epoch);
  welcome.set_rank(static_cast<uint32_t>(identity.rank));
  welcome.set_world_size(static_cast<uint32_t>(identity.world_size));
  welcome.set_node(static_cast<uint32_t>(identity.node));
  welcome.set_local_rank(static_cast<uint32_t>(identity.local_rank));
  welcome.set_local_world_size(static_cast<uint32_t>(identity.local_world_size));
  welcome.set_devices_per_rank(static_cast<uint32_t>(identity.devices_per_rank));
  for (const Device& device : identity.devices) {
    v1::Device* const proto = welcome.add_devices();
    proto->set_index(static_cast<uint32_t>(device.index));
    proto->set_kind(device.kind == DeviceKind::kCuda ? v1::Device::KIND_CUDA : v1::Device::KIND_SIMULATED);
    proto->set_node_index(static_cast<uint32_t>(device.node_index));
    proto->set_id(device.id);
  }
  welcome.set_node_count(static_cast<uint32_t>(identity.nodes.size()));
  for (const NodeInfo& node : identity.nodes) {
    v1::Node* const proto = welcome.add_nodes();
    proto->set_index(static_cast<uint32_t>(node.index));
    proto->set_name(node.name);
    proto->set_first_rank(static_cast<uint32_t>(node.first_rank));
    proto->set_rank_count(static_cast<uint32_t>(node.rank_count));
  }
  welcome.set_data_interface_ip(identity.data_interface_ip);
  welcome.set_nodes_share_host(identity.nodes_share_host);
  return welcome;
}

}  // namespace cohort::runtime
