// Addresses and lists of them as text, as an agent passes them to others. All functions are pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cohort::launcher {

// Returns the list that an agent passes to others, such as "10.0.0.1:4711,[fd00::1]:4711".
std::string FormatAddresses(const std::vector<std::string>& addresses, int port);

// Returns the list without IPv6's link-local addresses that have no scope: nobody can dial them. If there is no other
// address, the list stays as it is.
std::vector<std::string> WithoutUnscoped(const std::vector<std::string>& addresses);

// Returns each address of the list.
std::vector<std::string> SplitAddresses(const std::string& addresses);

// Returns the list without one of its addresses, for a caller that has found a stranger there. Empty when there is no
// other.
std::string WithoutAddress(const std::string& addresses, const std::string& address);
// Returns the number of addresses.
size_t CountAddresses(const std::string& addresses);

// Returns the port of "host:port" or "[host]:port"; 0 if there is none.
int PortOf(const std::string& address);

// Returns whether an address ("10.1.2.3") lies in a network ("10.0.0.0/8"). False for text that is no address or no
// network.
bool InNetwork(const std::string& address, const std::string& network);

}  // namespace cohort::launcher
