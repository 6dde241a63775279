#include "cohort/comm/transport/tcp/socket/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::tcp {
namespace {

// It fills 100 Gbit/s at 0.3 ms, and on loopback is 1.2 times as fast as what the kernel grows to by itself.
constexpr int kSocketBuffer = 4 << 20;
constexpr int kSmallestSocketBuffer = 512 << 10;
constexpr int64_t kAllSocketBuffers = int64_t{1} << 30;  // of one process, were all its peers to fill them
constexpr int kBacklog = 4096;

// A silent host is noticed on an idle connection: after 10 s, three probes 2 s apart.
constexpr int kKeepIdle = 10;
constexpr int kKeepInterval = 2;
constexpr int kKeepProbes = 3;

void Set(int socket, int level, int option, int value) { setsockopt(socket, level, option, &value, sizeof value); }

void SetOptions(int socket) {
  Set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdle);
  Set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepInterval);
  Set(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
}

// Before the connection is made: the window's scale is agreed on then.
void SetBuffers(int socket, int bytes) {
  if (bytes == 0) return;
  Set(socket, SOL_SOCKET, SO_SNDBUF, bytes);
  Set(socket, SOL_SOCKET, SO_RCVBUF, bytes);
}

sockaddr* Raw(SocketAddress& address) { return reinterpret_cast<sockaddr*>(&address.storage); }
const sockaddr* Raw(const SocketAddress& address) { return reinterpret_cast<const sockaddr*>(&address.storage); }

void SetPort(SocketAddress& address, uint16_t port) {
  if (address.storage.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = htons(port);
  }
}

bool IsAny(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr) != 0;
}

absl::StatusOr<SocketAddress> OwnAddress(int socket) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  if (getsockname(socket, Raw(address), &address.bytes) != 0) return runtime::ErrnoStatus(errno, "getsockname");
  return address;
}

}  // namespace

uint16_t SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(&storage)->sin_port
                                            : reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

absl::StatusOr<SocketAddress> AddressOf(const std::string& ip, uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  const size_t scope = ip.find('%');
  if (inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    address.bytes = sizeof *v4;
  } else if (inet_pton(AF_INET6, ip.substr(0, scope).c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    if (scope != std::string::npos) v6->sin6_scope_id = if_nametoindex(ip.c_str() + scope + 1);
    address.bytes = sizeof *v6;
  } else {
    return absl::InvalidArgumentError("'" + ip + "' is no IPv4 or IPv6 address");
  }
  SetPort(address, port);
  return address;
}

std::string ToText(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool v4 = address.storage.ss_family == AF_INET;
  const void* ip = v4 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr)
                      : &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
  inet_ntop(address.storage.ss_family, ip, text, sizeof text);
  const std::string port = ":" + std::to_string(address.port());
  return v4 ? text + port : "[" + std::string(text) + "]" + port;
}

absl::StatusOr<SocketAddress> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  const absl::Status wrong = absl::InvalidArgumentError("'" + text + "' is no address with a port");
  if (colon == std::string::npos || colon + 1 == text.size() || text.size() - colon > 6) return wrong;
  std::string ip = text.substr(0, colon);
  if (ip.size() > 2 && ip.front() == '[' && ip.back() == ']') ip = ip.substr(1, ip.size() - 2);
  uint32_t port = 0;
  for (const char c : text.substr(colon + 1)) {
    if (c < '0' || c > '9') return wrong;
    port = port * 10 + static_cast<uint32_t>(c - '0');
  }
  if (port == 0 || port > 0xffff) return wrong;
  absl::StatusOr<SocketAddress> address = AddressOf(ip, static_cast<uint16_t>(port));
  return address.ok() ? address : wrong;
}

int SocketBufferBytes(int world_size) {
  const int64_t share = kAllSocketBuffers / (2 * static_cast<int64_t>(std::max(world_size, 1)));
  const auto bytes = static_cast<int>(std::clamp<int64_t>(share, kSmallestSocketBuffer, kSocketBuffer));
  // A smaller grant would be worse than the kernel's own growing buffers.
  for (const char* path : {"/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max"}) {
    std::ifstream file(path);
    int64_t limit = 0;
    if (!(file >> limit) || limit < bytes) return 0;
  }
  return bytes;
}

absl::StatusOr<runtime::FileDescriptor> Listen(const std::string& ip, const std::string& port_range, int buffer_bytes) {
  COHORT_ASSIGN_OR_RETURN(SocketAddress address, AddressOf(ip.empty() ? "0.0.0.0" : ip, 0));
  int first = 0, last = 0;
  if (!port_range.empty()) {
    first = std::atoi(port_range.c_str());
    last = std::atoi(port_range.c_str() + port_range.find('-') + 1);
  }
  int error = 0;
  for (int port = first; port <= last; ++port) {
    SetPort(address, static_cast<uint16_t>(port));
    runtime::FileDescriptor socket(
        ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
    if (!socket.valid()) return runtime::ErrnoStatus(errno, "making a socket to listen on");
    SetBuffers(socket.get(), buffer_bytes);
    // Without it a port that an earlier job has used would be taken for a minute.
    if (port > 0) Set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(socket.get(), Raw(address), address.bytes) == 0 && listen(socket.get(), kBacklog) == 0) return socket;
    error = errno;
    if (error != EADDRINUSE) break;
  }
  const std::string where = ip.empty() ? "any interface" : ip;
  if (!port_range.empty()) {
    return runtime::ErrnoStatus(error, "listening on " + where + ", a port of COHORT_PORT_RANGE=" + port_range +
                                           ", of which every rank of the host needs one");
  }
  return runtime::ErrnoStatus(error, "listening on " + where + " (COHORT_DATA_ADDRESS names another interface)");
}

absl::StatusOr<std::vector<std::string>> AddressesOf(int listener) {
  COHORT_ASSIGN_OR_RETURN(const SocketAddress own, OwnAddress(listener));
  if (!IsAny(own)) return std::vector<std::string>{ToText(own)};
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return runtime::ErrnoStatus(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  std::vector<std::string> addresses, loopback;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    SocketAddress address;
    address.bytes = sizeof(sockaddr_in);
    std::memcpy(&address.storage, entry->ifa_addr, sizeof(sockaddr_in));
    SetPort(address, own.port());
    ((entry->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : addresses).push_back(ToText(address));
  }
  // Tried in this order.
  addresses.insert(addresses.end(), loopback.begin(), loopback.end());
  if (addresses.empty()) return absl::NotFoundError("no network interface of this machine is up");
  return addresses;
}

absl::StatusOr<runtime::FileDescriptor> StartConnect(const SocketAddress& address, int buffer_bytes,
                                                     const std::string& from) {
  runtime::FileDescriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket.valid()) return runtime::ErrnoStatus(errno, "making a socket");
  SetBuffers(socket.get(), buffer_bytes);
  SetOptions(socket.get());
  if (!from.empty()) {
    COHORT_ASSIGN_OR_RETURN(const SocketAddress own, AddressOf(from, 0));
    // The port is chosen when connecting, where the other side's address counts too.
    Set(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (bind(socket.get(), Raw(own), own.bytes) != 0) return runtime::ErrnoStatus(errno, "connecting from " + from);
  }
  if (connect(socket.get(), Raw(address), address.bytes) == 0 || errno == EINPROGRESS) return socket;
  return runtime::ErrnoStatus(errno, "connecting to " + ToText(address));
}

int ConnectError(int socket) {
  int error = 0;
  socklen_t bytes = sizeof error;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
  if (error != 0) return error;
  pollfd descriptor = {socket, POLLOUT, 0};
  return poll(&descriptor, 1, 0) == 1 ? 0 : EINPROGRESS;
}

bool HasEnded(int socket) {
  pollfd ended = {socket, POLLRDHUP, 0};
  return poll(&ended, 1, 0) != 0;
}

// The kernel goes on counting what a connection had in flight when it was reset.
bool HasUnacknowledged(int socket) {
  int bytes = 0;
  return !HasEnded(socket) && ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

runtime::FileDescriptor AcceptFrom(int listener, int* error) {
  runtime::FileDescriptor socket(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  *error = socket.valid() ? 0 : errno;
  if (socket.valid()) SetOptions(socket.get());
  return socket;
}

void TakeDescriptors() {
  constexpr rlim_t kEnough = 64 << 10;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(kEnough, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace cohort::comm::tcp
