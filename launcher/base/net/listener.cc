#include "cohort/launcher/base/net/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/net/address_list.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr int kBacklog = 4096;   // the kernel takes net.core.somaxconn, if that is less
constexpr int kPortChoices = 8;  // how often a port that is free at one address may be in use at the next

struct Bound {
  runtime::FileDescriptor socket;
  int port = 0;
};

sockaddr_storage Address(int family, const void* host, size_t size, int port) {
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET) {
    auto* four = reinterpret_cast<sockaddr_in*>(&address);
    four->sin_port = htons(static_cast<uint16_t>(port));
    if (host != nullptr) std::memcpy(&four->sin_addr, host, size);
  } else {
    auto* six = reinterpret_cast<sockaddr_in6*>(&address);
    six->sin6_port = htons(static_cast<uint16_t>(port));
    if (host != nullptr) std::memcpy(&six->sin6_addr, host, size);
  }
  return address;
}

// kNotFound: there is no such address now. `both`: at an address of IPv6 that stands for all, those of IPv4 too. `name`
// is for the error.
absl::StatusOr<Bound> Bind(sockaddr_storage address, bool both, const std::string& name) {
  Bound bound{runtime::FileDescriptor(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  const int fd = bound.socket.get();
  const int on = 1, only_six = both ? 0 : 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (address.ss_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_six, sizeof only_six);
  socklen_t size = address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || ::bind(fd, at, size) != 0 || ::listen(fd, kBacklog) != 0 || ::getsockname(fd, at, &size) != 0) {
    const std::string text = name + ": " + std::strerror(errno);
    return errno == EADDRNOTAVAIL ? absl::NotFoundError(text) : absl::UnavailableError(text);
  }
  bound.port = ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                                                  : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return bound;
}

// Binds an IPv6 socket that takes IPv4 too; if the kernel has no IPv6, one of IPv4.
absl::StatusOr<Bound> BindAll(int port) {
  const runtime::FileDescriptor probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int family = probe.valid() || errno != EAFNOSUPPORT ? AF_INET6 : AF_INET;
  return Bind(Address(family, nullptr, 0, port), /*both=*/true, "port " + std::to_string(port));
}

absl::StatusOr<Bound> BindOne(const std::string& host, int port) {
  const std::string name = FormatAddresses({host}, port);
  in_addr four{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) {
    return Bind(Address(AF_INET, &four, sizeof four, port), /*both=*/false, name);
  }
  in6_addr six{};
  if (::inet_pton(AF_INET6, host.c_str(), &six) == 1) {
    return Bind(Address(AF_INET6, &six, sizeof six, port), /*both=*/false, name);
  }
  return absl::InvalidArgumentError("'" + host + "' is not an address");
}

absl::StatusOr<Listener> ListenOnEach(const std::vector<std::string>& hosts, int port) {
  Listener listener{.sockets = {}, .port = port};
  absl::Status missing;
  for (const std::string& host : hosts) {
    absl::StatusOr<Bound> bound = BindOne(host, listener.port);
    if (absl::IsNotFound(bound.status())) missing = bound.status();
    if (absl::IsNotFound(bound.status())) continue;
    COHORT_RETURN_IF_ERROR(bound.status());
    listener.port = bound->port;
    listener.sockets.push_back(std::move(bound->socket));
  }
  if (listener.sockets.empty()) return absl::UnavailableError(std::string(missing.message()));
  return listener;
}

}  // namespace

absl::StatusOr<Listener> ListenOn(const std::vector<std::string>& hosts, int port) {
  if (hosts.empty()) {
    COHORT_ASSIGN_OR_RETURN(Bound bound, BindAll(port));
    Listener listener{.sockets = {}, .port = bound.port};
    listener.sockets.push_back(std::move(bound.socket));
    return listener;
  }
  absl::StatusOr<Listener> listener = ListenOnEach(hosts, port);
  for (int choice = 1; port == 0 && hosts.size() > 1 && absl::IsUnavailable(listener.status()) && choice < kPortChoices;
       ++choice) {
    listener = ListenOnEach(hosts, port);
  }
  return listener;
}

bool HasWaiting(int socket) {
  pollfd polled = {socket, POLLIN, 0};
  return ::poll(&polled, 1, 0) == 1;
}

}  // namespace cohort::launcher
