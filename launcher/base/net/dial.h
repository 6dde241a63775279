// Connects this machine to another.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// Returns the first of the list that accepts a TCP connection. It tries all at once. A single one is returned untried.
// Blocks until the deadline. kUnavailable names each address with its error. kInvalidArgument: there is no numeric
// address and port, or a link-local one of IPv6 without a scope of this machine ("[fe80::1%eth0]:4711").
absl::StatusOr<std::string> FirstReachable(const std::string& addresses, runtime::Deadline deadline);

struct Connection {
  runtime::FileDescriptor socket;
  std::string address;  // one of the list
};
// Connects to the first of the list that accepts a connection, with the same errors. The peer has yet to prove its
// identity: see WithoutAddress.
absl::StatusOr<Connection> ConnectToFirst(const std::string& addresses, runtime::Deadline deadline);

// Returns the local address of the route to "host:port", a numeric address; empty when there is none.
std::string LocalAddressTowards(const std::string& address);

}  // namespace cohort::launcher
