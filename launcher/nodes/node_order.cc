#include "cohort/launcher/nodes/node_order.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <utility>

#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/nodes/host_file.h"
#include "cohort/launcher/nodes/remote_hosts.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

// An address has none.
std::string WithoutDomain(const std::string& name) {
  const bool may_be_address = name.empty() || std::isdigit(static_cast<unsigned char>(name.front())) != 0;
  return may_be_address ? name : name.substr(0, name.find('.'));
}

}  // namespace

absl::Status OrderByList(const std::vector<HostEntry>& list, const std::string& origin,
                         std::vector<NodeResources>* nodes) {
  std::map<std::string, size_t> place;
  for (size_t i = 0; i < list.size(); ++i) place.emplace(list[i].host, i);
  for (size_t i = 0; i < list.size(); ++i) place.emplace(WithoutDomain(list[i].host), i);  // where nothing else has it
  std::vector<std::pair<size_t, NodeResources>> placed;
  for (const NodeResources& node : *nodes) {
    auto found = place.find(node.name);
    if (found == place.end()) found = place.find(WithoutDomain(node.name));
    if (found == place.end()) {
      return InvalidArgumentError(Remedy::kOrderIncomplete,
                                  origin + " lacks the node " + node.name + "; name every node of the job there");
    }
    placed.emplace_back(found->second, node);
  }
  std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < placed.size(); ++i) (*nodes)[i] = std::move(placed[i].second);
  return absl::OkStatus();
}

absl::Status OrderNodes(const Options& options, std::vector<NodeResources>* nodes) {
  if (options.rank_order == RankOrder::kNatural) {
    std::stable_sort(nodes->begin(), nodes->end(),
                     [](const NodeResources& a, const NodeResources& b) { return NaturalLess(a.name, b.name); });
  }
  if (options.rank_order != RankOrder::kFile) return absl::OkStatus();
  const std::string origin = "--rank-order file:" + options.rank_order_file;
  COHORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.rank_order_file, origin));
  COHORT_ASSIGN_OR_RETURN(const HostFile list, ParseHostFile(text, origin));
  return OrderByList(list.hosts, origin, nodes);
}

}  // namespace cohort::launcher
