// Listening TCP sockets: on all of this machine's addresses, or on some of them at one port.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

struct Listener {
  std::vector<runtime::FileDescriptor> sockets;  // non-blocking; what they accept has no delay (TCP_NODELAY)
  int port = 0;                                  // of all of them
};

// On each of `hosts`, numeric addresses ("10.0.0.1", "::1"); on all addresses, of IPv4 and IPv6, where there are none.
// Those that can't be had are left out as long as one can: an address of IPv6 is of no use in its first second. Port 0:
// any free one. kUnavailable says which address and why; kInvalidArgument: one is no address.
absl::StatusOr<Listener> ListenOn(const std::vector<std::string>& hosts, int port);

// Whether somebody waits to be accepted. accept(2) says EMFILE also where nobody does.
bool HasWaiting(int socket);

}  // namespace cohort::launcher
