#include "cohort/launcher/agent/mpi/node_places.h"

#include <algorithm>

namespace cohort::launcher {

NodePlaces PlacesOf(const v1::Assignment& assignment) {
  NodePlaces places;
  for (int i = 0; i < assignment.nodes_size(); ++i) {
    const v1::Node& node = assignment.nodes(i);
    if (static_cast<uint32_t>(i) == assignment.placement().node()) places.own = places.nodes.size();
    if (node.rank_count() == 0) continue;
    places.nodes.push_back({.name = node.name(),
                            .first_rank = static_cast<int>(node.first_rank()),
                            .ranks = static_cast<int>(node.rank_count())});
  }
  return places;
}

int UniverseOf(const v1::Assignment& assignment, int cpus) {
  const auto hosts = assignment.job().nodes_share_host() ? 1 : static_cast<int>(PlacesOf(assignment).nodes.size());
  return std::max(static_cast<int>(assignment.world_size()), hosts * cpus);
}

std::vector<size_t> NodePlaces::Of(const std::vector<int>& ranks) const {
  std::vector<size_t> places;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodePlace& node = nodes[i];
    const bool has = std::any_of(ranks.begin(), ranks.end(), [&node](int rank) {
      return rank >= node.first_rank && rank < node.first_rank + node.ranks;
    });
    if (has) places.push_back(i);
  }
  return places;
}

namespace {

// "rank 3", of what "rank" says, or "ranks 1, 2 and 5 more".
std::string Names(const std::string& what, const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string text = what + (names.size() == 1 ? " " : "s ");
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text + (names.size() > kMost ? " and " + std::to_string(names.size() - kMost) + " more" : "");
}

}  // namespace

std::string NodesWaitedFor(const NodePlaces& places, const std::set<size_t>& missing) {
  if (missing.empty()) return "";
  for (size_t before = 0; before < places.own; ++before) {
    if (!missing.contains(before)) return "";
  }
  std::vector<std::string> names;
  for (const size_t place : missing) names.push_back(places.nodes[place].name);
  return Names("node", names);
}

std::string NamesOfRanks(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(std::to_string(rank));
  return Names("rank", names);
}

}  // namespace cohort::launcher
