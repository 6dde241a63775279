// A numeric address and port as sockets take them.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"

namespace cohort::launcher {

struct Endpoint {
  std::string text;
  sockaddr_storage address{};
  socklen_t size = 0;
};

// Parses "10.0.0.1:4711", "[fd00::1]:4711" or "[fe80::1%eth0]:4711", numbers only. kInvalidArgument: it is none of
// these, or a link-local address of IPv6 without a scope of this machine.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text);

// Returns an address of IPv4 or IPv6 without port and scope, such as "10.0.0.1" or "fd00::1"; empty for another.
std::string NumericHost(const sockaddr* address);

}  // namespace cohort::launcher
