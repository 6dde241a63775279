#include "cohort/runtime/bootstrap/host_identity.h"

#include <limits.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include "absl/status/status.h"

namespace cohort::runtime {
namespace {

std::string PidNamespace() {
  char target[64] = {};
  const ssize_t length = readlink("/proc/self/ns/pid", target, sizeof target - 1);
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : "pid:[?]";
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id.empty() ? "?" : id;
}

}  // namespace

RankPlace ThisPlace() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') name[0] = '?';
  return RankPlace{BootId() + ":" + std::to_string(geteuid()) + ":" + PidNamespace(), name, getpid()};
}

std::string FormatPlace(const RankPlace& place) {
  return place.host + " " + place.name + " " + std::to_string(place.pid);
}

absl::StatusOr<RankPlace> ParsePlace(const std::string& text) {
  std::istringstream fields(text);
  RankPlace place;
  std::string rest;
  if (!(fields >> place.host >> place.name >> place.pid) || (fields >> rest) || place.pid <= 0) {
    return absl::InvalidArgumentError("the store says of a rank's place: \"" + text.substr(0, 200) +
                                      "\"; is it another job's store?");
  }
  return place;
}

std::vector<NodeInfo> NodesOf(const std::vector<RankPlace>& places) {
  std::vector<NodeInfo> nodes;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const bool same =
        rank > 0 && places[rank].host == places[rank - 1].host && nodes.back().rank_count < kMaxLocalRanks;
    if (!same) nodes.push_back(NodeInfo{static_cast<int>(nodes.size()), places[rank].name, static_cast<int>(rank), 0});
    ++nodes.back().rank_count;
  }
  return nodes;
}

bool NodesShareHost(const std::vector<RankPlace>& places, const std::vector<NodeInfo>& nodes) {
  std::set<std::string> hosts;
  for (const NodeInfo& node : nodes) {
    if (!hosts.insert(places[static_cast<size_t>(node.first_rank)].host).second) return true;
  }
  return false;
}

}  // namespace cohort::runtime
