#include "cohort/launcher/base/net/dial.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/endpoint.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(const std::string& addresses) {
  std::vector<Endpoint> endpoints;
  for (const std::string& text : SplitAddresses(addresses)) {
    COHORT_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(text));
    endpoints.push_back(std::move(endpoint));
  }
  if (endpoints.empty()) return absl::InvalidArgumentError("no address was given");
  return endpoints;
}

// All at once.
absl::StatusOr<Connection> ConnectAny(const std::vector<Endpoint>& endpoints, runtime::Deadline deadline) {
  std::vector<runtime::FileDescriptor> sockets;
  std::vector<pollfd> polled;
  std::vector<std::string> errors(endpoints.size());
  for (size_t i = 0; i < endpoints.size(); ++i) {
    const Endpoint& endpoint = endpoints[i];
    runtime::FileDescriptor fd(::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int started =
        fd.valid() ? ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.size) : -1;
    if (started == 0) return Connection{std::move(fd), endpoint.text};
    if (!fd.valid() || errno != EINPROGRESS) {
      errors[i] = std::strerror(errno);
      fd.Close();
    }
    polled.push_back({fd.get(), POLLOUT, 0});
    sockets.push_back(std::move(fd));
  }
  const auto open = [&] {
    return std::any_of(sockets.begin(), sockets.end(), [](const runtime::FileDescriptor& fd) { return fd.valid(); });
  };
  while (open() && !deadline.passed()) {
    const auto left =
        std::min(std::chrono::ceil<std::chrono::milliseconds>(deadline.left()), std::chrono::milliseconds(1000));
    ::poll(polled.data(), polled.size(), static_cast<int>(left.count()));
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (!sockets[i].valid() || polled[i].revents == 0) continue;
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(sockets[i].get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return Connection{std::move(sockets[i]), endpoints[i].text};
      errors[i] = std::strerror(error);
      sockets[i].Close();
      polled[i].fd = -1;
    }
  }
  std::string text;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    text += (i > 0 ? "; " : "") + endpoints[i].text + ": " + (errors[i].empty() ? "no answer" : errors[i]);
  }
  return absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<std::string> FirstReachable(const std::string& addresses, runtime::Deadline deadline) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<Endpoint> endpoints, ParseEndpoints(addresses));
  if (endpoints.size() == 1) return endpoints[0].text;
  COHORT_ASSIGN_OR_RETURN(Connection connection, ConnectAny(endpoints, deadline));
  return std::move(connection.address);
}

absl::StatusOr<Connection> ConnectToFirst(const std::string& addresses, runtime::Deadline deadline) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<Endpoint> endpoints, ParseEndpoints(addresses));
  return ConnectAny(endpoints, deadline);
}

std::string LocalAddressTowards(const std::string& address) {
  const absl::StatusOr<Endpoint> peer = ParseEndpoint(address);
  if (!peer.ok()) return "";
  const runtime::FileDescriptor fd(::socket(peer->address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&peer->address), peer->size) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    return "";
  }
  return NumericHost(reinterpret_cast<const sockaddr*>(&local));
}

}  // namespace cohort::launcher
