#include "cohort/launcher/agent/evidence/tcp_listeners.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMaxTable = 256u << 10;       // some 1700 sockets
constexpr size_t kMaxListeners = 64;           // at the wanted ports
constexpr size_t kMaxDescriptors = 16u << 10;  // of one process
constexpr std::string_view kListens = "0A";
constexpr std::string_view kSocket = "socket:[";

template <typename Number>
std::optional<Number> Parse(std::string_view text, int base) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

// "0100007F:6D7C", or 32 digits before the colon: words of 32 bits in this machine's order.
bool ParseAddress(std::string_view text, TcpListener* listener) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || (colon != 8 && colon != 32)) return false;
  std::array<uint32_t, 4> words{};
  for (size_t i = 0; i < colon / 8; ++i) {
    const auto word = Parse<uint32_t>(text.substr(i * 8, 8), 16);
    if (!word) return false;
    words[i] = *word;
  }
  const auto port = Parse<uint16_t>(text.substr(colon + 1), 16);
  if (!port) return false;
  listener->port = *port;
  if (colon == 8) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(*port);
    address.sin_addr.s_addr = words[0] == INADDR_ANY ? htonl(INADDR_LOOPBACK) : words[0];
    listener->size = sizeof(address);
    std::memcpy(&listener->address, &address, sizeof(address));
    return true;
  }
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(*port);
  std::memcpy(&address.sin6_addr, words.data(), sizeof(address.sin6_addr));
  if (IN6_IS_ADDR_UNSPECIFIED(&address.sin6_addr) != 0) address.sin6_addr = in6addr_loopback;
  listener->size = sizeof(address);
  std::memcpy(&listener->address, &address, sizeof(address));
  return true;
}

std::string ReadTable(const char* path) {
  const runtime::FileDescriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 16384> part{};
  while (file.valid() && text.size() < kMaxTable) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got <= 0) break;
    text.append(part.data(), static_cast<size_t>(got));
  }
  return text;
}

// Calls `found` with the inode of each socket that the process holds.
template <typename Found>
void ForSocketsOf(pid_t pid, const Found& found) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* const descriptors = ::opendir(folder.c_str());
  if (descriptors == nullptr) return;
  size_t looked = 0;
  while (const dirent* const entry = ::readdir(descriptors)) {
    if (++looked > kMaxDescriptors) break;
    std::array<char, 64> target{};
    const ssize_t length = ::readlinkat(::dirfd(descriptors), entry->d_name, target.data(), target.size());
    const std::string_view text(target.data(), length < 0 ? 0 : static_cast<size_t>(length));
    if (!text.starts_with(kSocket) || !text.ends_with(']')) continue;
    const auto inode = Parse<uint64_t>(text.substr(kSocket.size(), text.size() - kSocket.size() - 1), 10);
    if (inode) found(*inode);
  }
  ::closedir(descriptors);
}

}  // namespace

std::vector<TcpListener> ParseTcpListeners(const std::string& table) {
  std::vector<TcpListener> listeners;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retries, user, timeout, inode;
    words >> number >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >> inode;
    TcpListener listener;
    if (state != kListens || !ParseAddress(local, &listener)) continue;
    const auto socket = Parse<uint64_t>(inode, 10);
    if (!socket || *socket == 0) continue;
    listener.inode = *socket;
    listeners.push_back(listener);
  }
  return listeners;
}

std::vector<TcpListener> ListenersAt(const std::set<uint16_t>& ports) {
  std::vector<TcpListener> listeners;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const TcpListener& listener : ParseTcpListeners(ReadTable(table))) {
      if (ports.contains(listener.port) && listeners.size() < kMaxListeners) listeners.push_back(listener);
    }
  }
  return listeners;
}

std::map<uint64_t, pid_t> GroupsOfSockets(const std::set<uint64_t>& inodes, const std::set<pid_t>& groups) {
  std::map<uint64_t, pid_t> owners;
  for (const pid_t pid : ListProcesses()) {
    const auto state = ReadProcessState(pid);
    if (!state || state->state == 'Z' || !groups.contains(state->group)) continue;
    ForSocketsOf(pid, [&](uint64_t inode) {
      if (inodes.contains(inode)) owners.emplace(inode, state->group);
    });
  }
  return owners;
}

}  // namespace cohort::launcher
