// Which ranks run where: nodes x devices x options -> ranks, device groups, CPU sets. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/options/options.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// The resources of a node.
struct NodeResources {
  std::string name;
  std::vector<v1::Device> devices;  // in PCI order; node_index, kind and id filled in
  std::vector<int> cpus;            // that this job may use, neighbours next to each other
  // The same CPUs by what they share, neighbours next to each other; empty: each is a core, all are one NUMA node.
  std::vector<std::vector<int>> cores = {};
  std::vector<std::vector<int>> numa_nodes = {};
  std::optional<int> slots = {};  // the ranks that it takes, where the user's list of hosts says so
  std::optional<int> tasks = {};  // the tasks that a scheduler's allocation has there, where it tells
};

struct PlacementOptions {
  std::optional<int> ranks = {};  // of the whole job
  std::string ranks_by = {};      // what asks for them, for messages; empty: -n
  std::optional<int> ranks_per_node;
  std::optional<int> devices_per_rank;
  Bind bind = Bind::kCore;
};

struct Placement {
  std::vector<v1::NodePlacement> nodes;  // ranks counted through, in the order of the nodes
  int world_size = 0;
  int devices_per_rank = 0;
};

// Rank r of a node owns devices r*g .. r*g+g-1 of it; the k-th devices of all ranks form device group k.
//
//   devices_per_rank g given    ranks per node = devices / g; left-over devices are refused by name unless
//                               ranks_per_node is given too and needs fewer
//   only ranks_per_node given   simulated devices: one each; real ones: none, the ranks see all of them
//   neither                     one rank for each device; where there are none, the allocation's tasks, or one rank
//
// With `ranks` N nodes are filled in their order, each up to ranks_per_node, its slots or its devices / g (g is 1 where
// there are devices and it is not given), and those that get none are left out. Where nothing limits them, N is split
// evenly over all; where a node without devices would then get more ranks than tasks, and all tasks are N or more,
// the nodes are filled up to their tasks.
//
// A node's slots stand for ranks_per_node there where it is not given, and limit it where it is.
//
// CPUs: with Bind::kCore a node's cores are split evenly, neighbours staying together; where there are fewer cores than
// ranks its CPUs are, and where there are fewer of these, too, all share all. With kNuma its NUMA nodes are split in
// the same way, where there are fewer of them than ranks several ranks share one; with kNone a rank's list is empty.
// kInvalidArgument names the node, what is missing and the option that would work.
absl::StatusOr<Placement> Place(const std::vector<NodeResources>& nodes, const PlacementOptions& options);

// Places ranks on `spare` as on each of `placement`'s nodes: one placement for each number of ranks that they have;
// ranks are counted from 0. kInvalidArgument: it has too few GPUs for one of them.
absl::StatusOr<v1::SpareNode> PlaceSpare(const NodeResources& spare, const Placement& placement, Bind bind);

// "0-3,8" for {0,1,2,3,8}: Linux's list format, sorted.
std::string FormatCpuList(std::vector<int> cpus);
// The inverse. kInvalidArgument for anything that is no such list, and for CPUs above 65,535.
absl::StatusOr<std::vector<int>> ParseCpuList(const std::string& text);

// The plan as a table for people: a line for each rank, a column for each device group.
std::string FormatPlacement(const Placement& placement);

}  // namespace cohort::launcher
