// Algorithms of two levels: any algorithm between nodes, and any that moves messages inside each of them. They are made
// from the registered ones, so they are no lines of algorithms.def; two files know how to put two together:
//
//   leader   one rank of each node, its leader, takes part between the nodes (two_level_leader.cc)
//   shared   every rank takes a share of that part, with the ranks that have its place on the other nodes; for nodes
//            with equally many ranks (two_level_shared.cc)
//
// A composition is called SCHEME:INNER+OUTER, as in "leader:flat+ring". Where a part inside the node is of a kind that
// has no algorithm called INNER, it is done by the flat one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/placement.h"

namespace cohort::comm {

enum class Scheme : uint8_t { kLeader, kShared };

// The parts of an algorithm of two levels (AlgorithmInfo::composition).
struct Composition {
  Scheme scheme = Scheme::kLeader;
  std::string name;
  std::string_view inner;
  const AlgorithmInfo* outer = nullptr;
};

// One part of a composition: a collective among ranks of one node, or among one rank of each node.
struct Phase {
  const AlgorithmInfo* algorithm = nullptr;
  bool between = false;
  int size = 1;
  int32_t pieces = 1;  // that its block is cut into
  double blocks = 1;   // the length of its block, in blocks of the call
};

// The parts of a composition, one after another, among nodes of which the largest has shape.largest ranks.
std::vector<Phase> PhasesOf(const AlgorithmInfo& algorithm, const NodeShape& shape, int32_t pieces);

// The algorithm that does a part inside the nodes.
const AlgorithmInfo& InnerAlgorithm(const Composition& composition, CollectiveKind kind);
// The one that does the part between them; its variable-count form where the nodes' blocks are of unequal length.
const AlgorithmInfo& OuterAlgorithm(const Composition& composition, const Placement& placement);

// The plans of a composition; request.placement is not null.
Plan BuildLeader(const Composition& composition, const PlanRequest& request);
Plan BuildShared(const Composition& composition, const PlanRequest& request);

// Every composition, in the order of their numbers: what AllAlgorithms has after the registered ones.
std::vector<AlgorithmInfo> MakeCompositions(std::span<const AlgorithmInfo> registered);

// CheckRequirements of a composition.
absl::Status CheckComposition(const AlgorithmInfo& algorithm, const NodeShape& shape);

}  // namespace cohort::comm
