// --rank-order: the order in which nodes are numbered.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/nodes/host_list.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/options/options.h"

namespace cohort::launcher {

// Puts the nodes into the order that the options ask for. kInvalidArgument: the file of that order can't be read, is no
// list of hosts, or lacks a node.
absl::Status OrderNodes(const Options& options, std::vector<NodeResources>* nodes);

// The nodes as the list has them, which may name others as well; a name without its domain stands for both. Pure.
// kInvalidArgument, which begins with `origin`: it lacks a node.
absl::Status OrderByList(const std::vector<HostEntry>& list, const std::string& origin,
                         std::vector<NodeResources>* nodes);

}  // namespace cohort::launcher
