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

std::string NamesOfRanks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text + (ranks.size() > kMost ? " and " + std::to_string(ranks.size() - kMost) + " more" : "");
}

}  // namespace cohort::launcher
