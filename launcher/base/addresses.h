// Where a node can be reached, and how it reaches others.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/deadline.h"
#include "runtime/base/file_descriptor.h"

namespace cohort::launcher {

// This machine's addresses that another may reach: of interfaces that are up, neither loopback nor link-local; those of
// the default route's interface first, IPv4 before IPv6. With `interface`, only those of the interface of that name
// (link-local ones and loopback then count too), or within that network ("10.0.0.0/8", "fd00::/16"). Never a link-local
// one of IPv6: it is of use only with a scope, which is the name of an interface of whoever uses it.
std::vector<std::string> OwnAddresses(const std::string& interface = "");

// "10.0.0.1:4711,[fd00::1]:4711": the list that an agent hands to others.
std::string FormatAddresses(const std::vector<std::string>& addresses, int port);
// Without IPv6's link-local ones that have no scope: nobody can dial them. As it is where there is no other.
std::vector<std::string> WithoutUnscoped(const std::vector<std::string>& addresses);
// The port of "host:port" or "[host]:port"; 0 where there is none.
int PortOf(const std::string& address);

// The first of the list that accepts a TCP connection; all are tried at once. A single one is returned untried.
// kUnavailable names each with its error; kInvalidArgument: no numeric address and port, or a link-local one of IPv6
// without a scope that there is here ("[fe80::1%eth0]:4711"). Blocks until the deadline.
absl::StatusOr<std::string> FirstReachable(const std::string& addresses, runtime::Deadline deadline);

struct Connection {
  runtime::FileDescriptor socket;
  std::string address;  // one of the list
};
// A connection to the first of the list that accepts one, with the same errors. Who that is has yet to be seen: see
// WithoutAddress.
absl::StatusOr<Connection> ConnectToFirst(const std::string& addresses, runtime::Deadline deadline);

// The list without one of its addresses: for whoever has found a stranger there. Empty when there is no other.
std::string WithoutAddress(const std::string& addresses, const std::string& address);
// How many there are.
size_t CountAddresses(const std::string& addresses);

// The local address of the route to "host:port", a numeric address; empty when there is none.
std::string LocalAddressTowards(const std::string& address);

// A free TCP port from `first` to `last`; without them one below the range that the kernel gives to outgoing
// connections, so that none takes it before rank 0 does. 0 when none is found.
int FindFreePort(int first = 0, int last = 0);

// Whether "10.1.2.3" lies in "10.0.0.0/8"; false for what is no address or no network.
bool InNetwork(const std::string& address, const std::string& network);

// Whether this machine reaches itself: false where it has a loopback interface that is down, as in a new network
// namespace.
bool LoopbackIsUp();

}  // namespace cohort::launcher
