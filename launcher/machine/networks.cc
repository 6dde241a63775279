#include "cohort/launcher/machine/networks.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <memory>

#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/endpoint.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMostNamed = 12;  // a node of containers has hundreds

}  // namespace

std::vector<std::string> OwnNetworks() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &::freeifaddrs);
  std::vector<std::string> networks;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    const auto* six = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (family != AF_INET && (family != AF_INET6 || IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr) != 0)) continue;
    networks.push_back(std::string(entry->ifa_name) + " " + NumericHost(entry->ifa_addr));
  }
  return networks;
}

absl::Status CheckNetwork(const std::string& wanted, const std::vector<std::string>& networks) {
  std::string known;
  for (size_t i = 0; i < networks.size(); ++i) {
    const size_t blank = networks[i].find(' ');
    const std::string name = networks[i].substr(0, blank);
    const std::string address = blank == std::string::npos ? "" : networks[i].substr(blank + 1);
    if (name == wanted || InNetwork(address, wanted)) return absl::OkStatus();
    if (i < kMostNamed) known += (known.empty() ? "" : ", ") + name + " (" + address + ")";
    if (i == kMostNamed) known += ", ...";
  }
  return InvalidArgumentError(Remedy::kNoInterface,
                              "has no address on --iface " + wanted + "; " +
                                  (known.empty() ? "it has no network that is up" : "it has " + known) +
                                  ": name one of them, or a network such as 10.1.0.0/16");
}

}  // namespace cohort::launcher
