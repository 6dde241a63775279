#include "cohort/launcher/base/net/own_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/endpoint.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

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

}  // namespace

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

std::string LoopbackAddress() {
  const runtime::FileDescriptor probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool has_four = ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&four), sizeof four) == 0;
  if (has_four) return "127.0.0.1";
  const runtime::FileDescriptor other(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_loopback;
  const bool has_six = ::bind(other.get(), reinterpret_cast<const sockaddr*>(&six), sizeof six) == 0;
  return has_six ? "::1" : "127.0.0.1";
}

}  // namespace cohort::launcher
