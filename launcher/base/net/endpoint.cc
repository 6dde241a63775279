#include "cohort/launcher/base/net/endpoint.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

// Link-local addresses of IPv6 are the same on every link: the scope, an interface of this machine, tells which.
absl::Status ReadScope(const std::string& text, const std::string& scope, sockaddr_in6* address) {
  if (scope.empty() && text.find('%') == std::string::npos) {
    if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr) == 0) return absl::OkStatus();
    return InvalidArgumentError(Remedy::kLinkLocal,
                                "'" + text +
                                    "' is a link-local address, which needs the interface of this "
                                    "machine behind it, as in [fe80::1%eth0]:4711; or give another address");
  }
  address->sin6_scope_id = ::if_nametoindex(scope.c_str());
  if (address->sin6_scope_id != 0) return absl::OkStatus();
  return absl::InvalidArgumentError("'" + text + "': this machine has no interface " + scope);
}

}  // namespace

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

}  // namespace cohort::launcher
