// The networks of a node, among which --iface names one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace cohort::launcher {

// This machine's, one for each address of an interface that is up: "eth0 10.0.0.5". IPv6's link-local addresses are
// not among them: see OwnAddresses.
std::vector<std::string> OwnNetworks();

// Whether `wanted`, an interface's name or a network such as 10.1.0.0/16, is one of these. kInvalidArgument, to be read
// after the node's name: it is none; names those that there are. Pure.
absl::Status CheckNetwork(const std::string& wanted, const std::vector<std::string>& networks);

}  // namespace cohort::launcher
