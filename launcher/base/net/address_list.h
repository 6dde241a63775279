// Addresses and lists of them as text, as an agent hands them to others. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cohort::launcher {

// "10.0.0.1:4711,[fd00::1]:4711": the list that an agent hands to others.
std::string FormatAddresses(const std::vector<std::string>& addresses, int port);

// Without IPv6's link-local ones that have no scope: nobody can dial them. As it is where there is no other.
std::vector<std::string> WithoutUnscoped(const std::vector<std::string>& addresses);

// Each of the list.
std::vector<std::string> SplitAddresses(const std::string& addresses);

// The list without one of its addresses: for whoever has found a stranger there. Empty when there is no other.
std::string WithoutAddress(const std::string& addresses, const std::string& address);
// How many there are.
size_t CountAddresses(const std::string& addresses);

// The port of "host:port" or "[host]:port"; 0 where there is none.
int PortOf(const std::string& address);

// Whether "10.1.2.3" lies in "10.0.0.0/8"; false for what is no address or no network.
bool InNetwork(const std::string& address, const std::string& network);

}  // namespace cohort::launcher
