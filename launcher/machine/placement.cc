#include "cohort/launcher/machine/placement.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

std::string DeviceNames(const std::vector<v1::Device>& devices, size_t first) {
  std::string names;
  for (size_t i = first; i < devices.size(); ++i) {
    if (!names.empty()) names += ", ";
    names += "GPU " + std::to_string(devices[i].node_index()) + " (" + devices[i].id() + ")";
  }
  return names;
}

bool IsSimulated(const NodeResources& node) {
  return !node.devices.empty() && node.devices[0].kind() == v1::Device::KIND_SIMULATED;
}

struct Counts {
  int ranks = 0;
  int devices_per_rank = 0;
};

absl::Status NoDevice(const NodeResources& node, const PlacementOptions& options) {
  const int each = *options.devices_per_rank;
  const int ranks = options.ranks.value_or(options.ranks_per_node.value_or(2));
  return InvalidArgumentError(
      Remedy::kNoGpu,
      "--gpus-per-rank " + std::to_string(each) + ": " + node.name +
          " has no GPU (the driver shows none, or CUDA_VISIBLE_DEVICES hides them); add --simulate-gpus " +
          std::to_string(std::min(int64_t{each} * ranks, int64_t{kMaxDevicesPerNode})) +
          " to pretend some, or leave it out" +
          (options.ranks ? ", and the ranks own no GPUs" : " and use --nproc-per-node"));
}

absl::StatusOr<Counts> CountWithDevices(const NodeResources& node, const PlacementOptions& options) {
  const int have = static_cast<int>(node.devices.size());
  const int each = *options.devices_per_rank;
  if (have == 0) return NoDevice(node, options);
  const int ranks = options.ranks_per_node.value_or(have / each);
  if (ranks == 0 || int64_t{ranks} * each > have) {
    const int wanted = std::max(ranks, 1);
    return InvalidArgumentError(
        Remedy::kTooFewGpus,
        std::to_string(wanted) + " rank" + (wanted > 1 ? "s" : "") + " of " + std::to_string(each) +
            (each > 1 ? " GPUs" : " GPU") + (wanted > 1 ? " need " : " needs ") +
            std::to_string(int64_t{wanted} * each) + " GPUs, but " + node.name + " has " + std::to_string(have) +
            (each > 1 ? "; lower --gpus-per-rank" : "; lower ") +
            (options.ranks_per_node ? (each > 1 ? " or --nproc-per-node" : "--nproc-per-node") : ""));
  }
  if (!options.ranks_per_node && have % each != 0) {
    return InvalidArgumentError(
        Remedy::kGpusLeftOver, node.name + " has " + std::to_string(have) + " GPUs, which --gpus-per-rank " +
                                   std::to_string(each) +
                                   " does not divide: " + DeviceNames(node.devices, static_cast<size_t>(ranks) * each) +
                                   " would be left over; " +
                                   (IsSimulated(node) ? "give --simulate-gpus " + std::to_string(ranks * each)
                                                      : "hide them with CUDA_VISIBLE_DEVICES") +
                                   ", or add --nproc-per-node " + std::to_string(ranks));
  }
  return Counts{ranks, each};
}

absl::StatusOr<Counts> Count(const NodeResources& node, const PlacementOptions& options) {
  if (options.devices_per_rank) return CountWithDevices(node, options);
  if (node.devices.empty() || (options.ranks_per_node && !IsSimulated(node)))
    return Counts{options.ranks_per_node.value_or(node.tasks.value_or(1)), 0};
  PlacementOptions one = options;
  one.devices_per_rank = 1;
  return CountWithDevices(node, one);
}

// A node's slots are its --nproc-per-node where none is given, and its limit where one is.
absl::StatusOr<PlacementOptions> WithSlots(const NodeResources& node, PlacementOptions options) {
  if (!node.slots) return options;
  if (options.ranks_per_node && *options.ranks_per_node > *node.slots) {
    return InvalidArgumentError(Remedy::kSlotsExceeded, "--nproc-per-node " + std::to_string(*options.ranks_per_node) +
                                                            ": " + node.name + " takes " + std::to_string(*node.slots) +
                                                            (*node.slots == 1 ? " rank" : " ranks") +
                                                            " by the list of hosts; change either");
  }
  if (!options.ranks_per_node) options.ranks_per_node = node.slots;
  return options;
}

// How many of -n's ranks a node takes; none: nothing limits it.
std::optional<int> CapacityOf(const NodeResources& node, const PlacementOptions& options) {
  if (options.ranks_per_node) return options.ranks_per_node;
  std::optional<int> capacity = node.slots;
  if (options.devices_per_rank) {
    const int fit = static_cast<int>(node.devices.size()) / *options.devices_per_rank;
    capacity = std::min(fit, capacity.value_or(fit));
  }
  return capacity;
}

// The share of node `index` where `wanted` ranks are split evenly over `count` nodes.
int EvenShare(int wanted, int count, int index) { return wanted / count + (index < wanted % count ? 1 : 0); }

// Whether -n's ranks fill the nodes by the allocation's uneven tasks: an even split would overload one of them.
bool FitsTasksOnly(const std::vector<NodeResources>& nodes, int wanted) {
  int64_t tasks = 0;
  bool overloads = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].tasks || !nodes[i].devices.empty()) return false;
    tasks += *nodes[i].tasks;
    overloads = overloads || EvenShare(wanted, static_cast<int>(nodes.size()), static_cast<int>(i)) > *nodes[i].tasks;
  }
  return overloads && wanted <= tasks;
}

// -n: the ranks of each node, those without any left out at the end.
absl::StatusOr<std::vector<int>> DivideRanks(const std::vector<NodeResources>& nodes, const PlacementOptions& options) {
  const int wanted = *options.ranks;
  const int count = static_cast<int>(nodes.size());
  std::vector<std::optional<int>> capacities;
  bool limited = false;
  const bool by_tasks = !options.ranks_per_node && !options.devices_per_rank && FitsTasksOnly(nodes, wanted);
  for (const NodeResources& node : nodes) {
    capacities.push_back(by_tasks ? node.tasks : CapacityOf(node, options));
    limited = limited || capacities.back();
  }
  std::vector<int> ranks;
  int left = wanted;
  for (int i = 0; i < count && left > 0; ++i) {
    // A host without slots among hosts that have them takes one rank, as with mpirun.
    const int share = limited ? capacities[i].value_or(1) : EvenShare(wanted, count, i);
    ranks.push_back(std::min(share, left));
    left -= ranks.back();
  }
  if (left == 0) return ranks;
  const bool devices = options.devices_per_rank && !options.ranks_per_node;
  for (const NodeResources& node : nodes) {
    if (devices && node.devices.empty()) return NoDevice(node, options);
  }
  std::string remedy = "raise --nproc-per-node or the slots of the list of hosts";
  if (devices && IsSimulated(nodes[0])) {
    remedy = "raise --simulate-gpus";
  } else if (devices && *options.devices_per_rank > 1) {
    remedy = "lower --gpus-per-rank";
  } else if (devices) {
    remedy = "let ranks share a node's GPUs, with --nproc-per-node and without --gpus-per-rank";
  }
  const std::string by = options.ranks_by.empty() ? "-n " + std::to_string(wanted) : options.ranks_by;
  return InvalidArgumentError(Remedy::kTooFewPlaces, by + ": the nodes take " + std::to_string(wanted - left) +
                                                         " ranks; lower it, get more nodes, or " + remedy);
}

// The part of `parts` that belongs to rank `local` of `ranks`: an even share, or one part that others have as well.
std::vector<int> ShareOf(const std::vector<std::vector<int>>& parts, size_t local, size_t ranks) {
  const size_t begin = local * parts.size() / ranks;
  const size_t end = std::max(begin + 1, (local + 1) * parts.size() / ranks);
  std::vector<int> cpus;
  for (size_t i = begin; i < std::min(end, parts.size()); ++i) {
    cpus.insert(cpus.end(), parts[i].begin(), parts[i].end());
  }
  return cpus;
}

std::vector<int> CpusOf(const NodeResources& node, size_t local, size_t ranks, Bind bind) {
  if (bind == Bind::kNone) return {};
  if (bind == Bind::kNuma) return node.numa_nodes.empty() ? node.cpus : ShareOf(node.numa_nodes, local, ranks);
  if (node.cores.size() >= ranks) return ShareOf(node.cores, local, ranks);
  if (node.cpus.size() < ranks) return node.cpus;
  std::vector<std::vector<int>> single;
  for (const int cpu : node.cpus) single.push_back({cpu});
  return ShareOf(single, local, ranks);
}

v1::NodePlacement PlaceNode(const NodeResources& node, int index, const Counts& counts, int first_rank, Bind bind) {
  v1::NodePlacement placement;
  placement.set_node(index);
  placement.set_name(node.name);
  const size_t ranks = static_cast<size_t>(counts.ranks);
  for (size_t local = 0; local < ranks; ++local) {
    v1::RankPlacement* rank = placement.add_ranks();
    rank->set_rank(first_rank + static_cast<int>(local));
    rank->set_local_rank(local);
    for (int k = 0; k < counts.devices_per_rank; ++k) {
      v1::Device* device = rank->add_devices();
      *device = node.devices[local * counts.devices_per_rank + k];
      device->set_index(k);
    }
    rank->set_cpus(FormatCpuList(CpusOf(node, local, ranks, bind)));
  }
  return placement;
}

}  // namespace

absl::StatusOr<Placement> Place(const std::vector<NodeResources>& nodes, const PlacementOptions& options) {
  if (nodes.empty()) return InvalidArgumentError(Remedy::kNoNodes, "there are no nodes to run on");
  Placement placement;
  std::optional<Counts> first;
  std::vector<int> divided;
  PlacementOptions common = options;
  if (options.ranks) {
    if (!options.devices_per_rank && !options.ranks_per_node && !nodes[0].devices.empty()) common.devices_per_rank = 1;
    COHORT_ASSIGN_OR_RETURN(divided, DivideRanks(nodes, common));
  }
  for (size_t i = 0; i < (options.ranks ? divided.size() : nodes.size()); ++i) {
    COHORT_ASSIGN_OR_RETURN(PlacementOptions own, WithSlots(nodes[i], common));
    if (options.ranks) own.ranks_per_node = divided[i];
    COHORT_ASSIGN_OR_RETURN(const Counts counts, Count(nodes[i], own));
    if (counts.ranks > kMaxRanksPerNode) {
      return InvalidArgumentError(Remedy::kRanksPerNodeLimit,
                                  std::to_string(counts.ranks) + " ranks on " + nodes[i].name + "; the limit is " +
                                      std::to_string(kMaxRanksPerNode) +
                                      " on each node: lower their number, or use more nodes");
    }
    if (!first) first = counts;
    if (counts.devices_per_rank != first->devices_per_rank) {
      return InvalidArgumentError(Remedy::kGpusDiffer,
                                  nodes[0].name + " gives its ranks " + std::to_string(first->devices_per_rank) +
                                      " GPUs and " + nodes[i].name + " " + std::to_string(counts.devices_per_rank) +
                                      "; give --gpus-per-rank");
    }
    placement.nodes.push_back(PlaceNode(nodes[i], static_cast<int>(i), counts, placement.world_size, options.bind));
    placement.world_size += counts.ranks;
  }
  placement.devices_per_rank = first->devices_per_rank;
  return placement;
}

absl::StatusOr<v1::SpareNode> PlaceSpare(const NodeResources& spare, const Placement& placement, Bind bind) {
  v1::SpareNode planned;
  planned.set_name(spare.name);
  std::set<int> counts;
  for (const v1::NodePlacement& node : placement.nodes) {
    const int ranks = node.ranks_size();
    if (!counts.insert(ranks).second) continue;
    const int64_t devices = int64_t{ranks} * placement.devices_per_rank;
    if (devices > static_cast<int64_t>(spare.devices.size())) {
      return InvalidArgumentError(Remedy::kSpareTooSmall,
                                  "the spare node " + spare.name + " has " + std::to_string(spare.devices.size()) +
                                      " GPUs and can't take the place of " + node.name() + ", whose ranks need " +
                                      std::to_string(devices) + "; put it before the others, or lower --spares");
    }
    *planned.add_placements() = PlaceNode(spare, 0, {ranks, placement.devices_per_rank}, 0, bind);
  }
  return planned;
}

std::string FormatCpuList(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(cpus[i]);
    if (end - i > 1) text += "-" + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

absl::StatusOr<std::vector<int>> ParseCpuList(const std::string& text) {
  const auto bad = [&] { return absl::InvalidArgumentError("'" + text + "' is no CPU list such as 0-3,8"); };
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](int* value) {
    const auto [next, error] = std::from_chars(at, end, *value);
    at = next;
    return error == std::errc() && *value >= 0 && *value <= 65535;
  };
  while (at != end) {
    int first = 0;
    if (!number(&first)) return bad();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!number(&last) || last < first) return bad();
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (at == end) break;
    if (*at != ',' || ++at == end) return bad();
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string FormatPlacement(const Placement& placement) {
  std::vector<std::vector<std::string>> rows;
  rows.push_back({"node", "name", "rank", "local"});
  for (int k = 0; k < placement.devices_per_rank; ++k) rows[0].push_back("group " + std::to_string(k));
  rows[0].push_back("CPUs");
  for (const v1::NodePlacement& node : placement.nodes) {
    for (const v1::RankPlacement& rank : node.ranks()) {
      std::vector<std::string> row = {std::to_string(node.node()), node.name(), std::to_string(rank.rank()),
                                      std::to_string(rank.local_rank())};
      for (const v1::Device& device : rank.devices()) {
        const bool simulated = device.kind() == v1::Device::KIND_SIMULATED;
        row.push_back(simulated ? device.id() : "GPU " + std::to_string(device.node_index()));
      }
      row.push_back(rank.cpus().empty() ? "any" : rank.cpus());
      rows.push_back(std::move(row));
    }
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace cohort::launcher
