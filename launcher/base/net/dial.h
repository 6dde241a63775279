// How this machine reaches another.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

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

// The local address of the route to "host:port", a numeric address; empty when there is none.
std::string LocalAddressTowards(const std::string& address);

}  // namespace cohort::launcher
