#include "cohort/comm/transport/net/net_interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "absl/status/status.h"

namespace cohort::comm::net {
namespace {

struct Address {
  int family = AF_UNSPEC;
  in_addr v4 = {};
  in6_addr v6 = {};

  bool loopback() const { return family == AF_INET ? (ntohl(v4.s_addr) >> 24) == 127 : IN6_IS_ADDR_LOOPBACK(&v6) != 0; }
  bool operator==(const Address& other) const {
    if (family != other.family) return false;
    return family == AF_INET ? v4.s_addr == other.v4.s_addr : std::memcmp(&v6, &other.v6, sizeof v6) == 0;
  }
};

bool Parse(const std::string& text, Address* address) {
  if (inet_pton(AF_INET, text.c_str(), &address->v4) == 1) {
    address->family = AF_INET;
    return true;
  }
  const std::string without_scope = text.substr(0, text.find('%'));
  if (inet_pton(AF_INET6, without_scope.c_str(), &address->v6) == 1) {
    address->family = AF_INET6;
    return true;
  }
  return false;
}

bool FromSocketAddress(const sockaddr* socket_address, Address* address) {
  if (socket_address == nullptr) return false;
  address->family = socket_address->sa_family;
  if (address->family == AF_INET) {
    address->v4 = reinterpret_cast<const sockaddr_in*>(socket_address)->sin_addr;
    return true;
  }
  if (address->family == AF_INET6) {
    address->v6 = reinterpret_cast<const sockaddr_in6*>(socket_address)->sin6_addr;
    return true;
  }
  return false;
}

std::string ToText(const Address& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const void* bytes = address.family == AF_INET ? static_cast<const void*>(&address.v4) : &address.v6;
  inet_ntop(address.family, bytes, text, sizeof text);
  return text;
}

}  // namespace

absl::StatusOr<std::string> InterfaceOf(const std::string& ip) {
  Address wanted;
  if (!Parse(ip, &wanted)) return absl::InvalidArgumentError("'" + ip + "' is no IPv4 or IPv6 address");
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    return absl::InternalError(std::string("getifaddrs: ") + std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  std::string present;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    Address address;
    if (!FromSocketAddress(entry->ifa_addr, &address)) continue;
    if (address == wanted || (wanted.loopback() && (entry->ifa_flags & IFF_LOOPBACK) != 0)) return entry->ifa_name;
    present += (present.empty() ? "" : ", ") + std::string(entry->ifa_name) + " " + ToText(address);
  }
  return absl::NotFoundError("no network interface of this machine has the data address " + ip +
                             "; there are: " + present + ". COHORT_DATA_ADDRESS says which one is taken");
}

std::vector<std::string> RdmaDevicesOf(const std::string& interface, const std::string& sysfs) {
  std::vector<std::string> devices;
  if (interface.empty()) return devices;
  const std::filesystem::path folder = std::filesystem::path(sysfs) / "class/net" / interface;
  int port = 0;
  std::ifstream(folder / "dev_port") >> port;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "device/infiniband", error)) {
    devices.push_back(entry.path().filename().string() + ":" + std::to_string(port + 1));
  }
  std::sort(devices.begin(), devices.end());
  return devices;
}

}  // namespace cohort::comm::net
