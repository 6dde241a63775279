// Where this machine can be reached.
#pragma once

#include <string>
#include <vector>

namespace cohort::launcher {

// This machine's addresses that another may reach: of interfaces that are up, neither loopback nor link-local; those of
// the default route's interface first, IPv4 before IPv6. With `interface`, only those of the interface of that name
// (link-local ones and loopback then count too), or within that network ("10.0.0.0/8", "fd00::/16"). Never a link-local
// one of IPv6: it is of use only with a scope, which is the name of an interface of whoever uses it.
std::vector<std::string> OwnAddresses(const std::string& interface = "");

// Whether this machine reaches itself: false where it has a loopback interface that is down, as in a new network
// namespace.
bool LoopbackIsUp();

}  // namespace cohort::launcher
