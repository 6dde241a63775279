#include "launcher/base/addresses.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "runtime/base/file_descriptor.h"
#include "runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

struct Endpoint {
  std::string text;
  sockaddr_storage address{};
  socklen_t size = 0;
};

// Link-local addresses of IPv6 are the same on every link: the scope, an interface of this machine, tells which.
absl::Status ReadScope(const std::string& text, const std::string& scope, sockaddr_in6* address) {
  if (scope.empty() && text.find('%') == std::string::npos) {
    if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr) == 0) return absl::OkStatus();
    return absl::InvalidArgumentError("'" + text +
                                      "' is a link-local address, which needs the interface of this "
                                      "machine behind it, as in [fe80::1%eth0]:4711; or give another address");
  }
  address->sin6_scope_id = ::if_nametoindex(scope.c_str());
  if (address->sin6_scope_id != 0) return absl::OkStatus();
  return absl::InvalidArgumentError("'" + text + "': this machine has no interface " + scope);
}

// "10.0.0.1:4711", "[fd00::1]:4711" or "[fe80::1%eth0]:4711", numbers only.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text) {
  Endpoint endpoint{.text = text};
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const size_t percent = std::min(host.find('%'), host.size());
  const std::string scope = host.substr(std::min(percent + 1, host.size()));
  const bool scoped = percent < host.size();
  host.resize(percent);
  const int port = PortOf(text);
  auto* four = reinterpret_cast<sockaddr_in*>(&endpoint.address);
  auto* six = reinterpret_cast<sockaddr_in6*>(&endpoint.address);
  if (port > 0 && !scoped && ::inet_pton(AF_INET, host.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(static_cast<uint16_t>(port));
    endpoint.size = sizeof *four;
  } else if (port > 0 && ::inet_pton(AF_INET6, host.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(static_cast<uint16_t>(port));
    endpoint.size = sizeof *six;
    COHORT_RETURN_IF_ERROR(ReadScope(text, scope, six));
  } else {
    return absl::InvalidArgumentError("'" + text + "' is not an address and a port");
  }
  return endpoint;
}

std::string NumericHost(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = address->sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                          : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return ::inet_ntop(address->sa_family, bytes, text, sizeof text) == nullptr ? "" : text;
}

// The interface of IPv4's default route; empty when there is none.
std::string DefaultInterface() {
  std::ifstream routes("/proc/net/route");
  std::string line;
  std::getline(routes, line);
  while (std::getline(routes, line)) {
    std::istringstream words(line);
    std::string interface, destination;
    if (words >> interface >> destination && destination == "00000000") return interface;
  }
  return "";
}

bool LinkLocal(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 16 == 0xa9fe;  // 169.254/16
  }
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
}

std::vector<std::string> SplitAddresses(const std::string& addresses) {
  std::vector<std::string> texts;
  std::istringstream stream(addresses);
  for (std::string text; std::getline(stream, text, ',');) texts.push_back(text);
  return texts;
}

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

bool InNetwork(const std::string& address, const std::string& network) {
  const size_t slash = network.find('/');
  if (slash == std::string::npos) return false;
  int bits = 0;
  const char* const end = network.data() + network.size();
  const auto [stop, error] = std::from_chars(network.data() + slash + 1, end, bits);
  for (const int family : {AF_INET, AF_INET6}) {
    unsigned char a[16], b[16];
    if (::inet_pton(family, address.c_str(), a) != 1) continue;
    if (::inet_pton(family, network.substr(0, slash).c_str(), b) != 1) continue;
    if (error != std::errc() || stop != end || bits < 0 || bits > (family == AF_INET ? 32 : 128)) return false;
    for (int bit = 0; bit < bits; ++bit) {
      if (((a[bit / 8] ^ b[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
    }
    return true;
  }
  return false;
}

std::vector<std::string> OwnAddresses(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::string preferred = DefaultInterface();
  std::vector<std::pair<int, std::string>> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const sockaddr* address = entry->ifa_addr;
    if (address == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (address->sa_family != AF_INET && address->sa_family != AF_INET6) continue;
    const bool named = interface == entry->ifa_name || InNetwork(NumericHost(address), interface);
    if (!interface.empty() && !named) continue;
    if (!named && ((entry->ifa_flags & IFF_LOOPBACK) != 0 || LinkLocal(address))) continue;
    if (address->sa_family == AF_INET6 && LinkLocal(address)) continue;
    found.emplace_back((address->sa_family == AF_INET6 ? 2 : 0) + (preferred == entry->ifa_name ? 0 : 1),
                       NumericHost(address));
  }
  ::freeifaddrs(list);
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> addresses;
  for (auto& [order, text] : found) addresses.push_back(std::move(text));
  return addresses;
}

std::string FormatAddresses(const std::vector<std::string>& addresses, int port) {
  std::string text;
  for (const std::string& address : addresses) {
    if (!text.empty()) text += ',';
    text += (address.find(':') == std::string::npos ? address : "[" + address + "]") + ":" + std::to_string(port);
  }
  return text;
}

int PortOf(const std::string& address) {
  int port = 0;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return 0;
  const char* end = address.data() + address.size();
  const auto [stop, error] = std::from_chars(address.data() + colon + 1, end, port);
  return error == std::errc() && stop == end && port > 0 && port < 65536 ? port : 0;
}

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

std::string WithoutAddress(const std::string& addresses, const std::string& address) {
  std::string rest;
  for (const std::string& text : SplitAddresses(addresses)) {
    if (text != address) rest += (rest.empty() ? "" : ",") + text;
  }
  return rest;
}

size_t CountAddresses(const std::string& addresses) { return SplitAddresses(addresses).size(); }

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

std::vector<std::string> WithoutUnscoped(const std::vector<std::string>& addresses) {
  std::vector<std::string> kept;
  for (const std::string& address : addresses) {
    in6_addr six{};
    const bool unscoped = ::inet_pton(AF_INET6, address.c_str(), &six) == 1 && IN6_IS_ADDR_LINKLOCAL(&six) != 0;
    if (!unscoped) kept.push_back(address);
  }
  return kept.empty() ? addresses : kept;
}

int FindFreePort(int first, int last) {
  const auto free = [](int port) {
    const runtime::FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_ANY);
    any.sin_port = htons(static_cast<uint16_t>(port));
    return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0;
  };
  for (int port = first; first > 0 && port <= last; ++port) {
    if (free(port)) return port;
  }
  if (first > 0) return 0;
  const runtime::FileDescriptor random(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  for (int attempt = 0; attempt < 100; ++attempt) {
    uint16_t number = 0;
    if (::read(random.get(), &number, sizeof number) != sizeof number) break;
    const int port = 20000 + number % 12000;
    if (free(port)) return port;
  }
  return 0;
}

bool LoopbackIsUp() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return true;  // nobody knows
  bool known = false;
  bool up = false;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_LOOPBACK) == 0) continue;
    known = true;
    up = up || (entry->ifa_flags & IFF_UP) != 0;
  }
  ::freeifaddrs(list);
  return up || !known;
}

}  // namespace cohort::launcher
