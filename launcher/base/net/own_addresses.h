// The addresses at which others reach this machine.
#pragma once

#include <string>
#include <vector>

namespace cohort::launcher {

// Returns this machine's addresses that another may reach: those of interfaces that are up, neither loopback nor
// link-local. The default route's interface comes first, and IPv4 before IPv6. With `interface`, only addresses of the
// interface of that name, or within that network ("10.0.0.0/8", "fd00::/16"), are returned. Link-local ones and
// loopback then count too. A link-local one of IPv6 is never returned: it needs a scope, which is the name of an
// interface on the other machine.
std::vector<std::string> OwnAddresses(const std::string& interface = "");

// Returns whether this machine reaches itself. It is false if the loopback interface is down, as in a new network
// namespace.
bool LoopbackIsUp();

// Returns the address at which processes of this machine meet: 127.0.0.1, or ::1 where the loopback interface has only
// that.
std::string LoopbackAddress();

}  // namespace cohort::launcher
