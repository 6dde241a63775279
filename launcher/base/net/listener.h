// Listening TCP sockets: on all of this machine's addresses, or on some of them at one port.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

struct Listener {
  std::vector<runtime::FileDescriptor> sockets;  // non-blocking; accepted connections have no delay (TCP_NODELAY)
  int port = 0;                                  // of all of them
};

// Listens on each of `hosts`, numeric addresses ("10.0.0.1", "::1"). Without any it listens on all addresses of IPv4
// and IPv6. Addresses that cannot be bound are left out as long as one can: an IPv6 address is unusable in its first
// second. Port 0: any free one. kUnavailable says which address and why. kInvalidArgument: one is no address.
absl::StatusOr<Listener> ListenOn(const std::vector<std::string>& hosts, int port);

// Returns whether a connection waits to be accepted. accept(2) says EMFILE also if none does.
bool HasWaiting(int socket);

}  // namespace cohort::launcher
