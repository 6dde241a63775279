#include "cohort/launcher/base/net/address_list.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <sstream>
#include <string_view>
#include <system_error>

#include "cohort/launcher/base/whole_number.h"

namespace cohort::launcher {

std::string FormatAddresses(const std::vector<std::string>& addresses, int port) {
  std::string text;
  for (const std::string& address : addresses) {
    if (!text.empty()) text += ',';
    text += (address.find(':') == std::string::npos ? address : "[" + address + "]") + ":" + std::to_string(port);
  }
  return text;
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

std::vector<std::string> SplitAddresses(const std::string& addresses) {
  std::vector<std::string> texts;
  std::istringstream stream(addresses);
  for (std::string text; std::getline(stream, text, ',');) texts.push_back(text);
  return texts;
}

std::string WithoutAddress(const std::string& addresses, const std::string& address) {
  std::string rest;
  for (const std::string& text : SplitAddresses(addresses)) {
    if (text != address) rest += (rest.empty() ? "" : ",") + text;
  }
  return rest;
}

size_t CountAddresses(const std::string& addresses) { return SplitAddresses(addresses).size(); }

int PortOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return 0;
  return ReadWholeNumber(std::string_view(address).substr(colon + 1), 1, 65535).value_or(0);
}

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

}  // namespace cohort::launcher
