#include "cohort/launcher/agent/evidence/tcp_listeners.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

constexpr char kTable[] =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    "   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000 100 0\n"
    "   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0000 100 0\n"
    "   2: 0100007F:6D7C 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0000 100 0\n"
    "   3: 00000000000000000000000001000000:6D7C 00000000000000000000000000000000:0000 0A 00000000:00000000 "
    "00:00000000 00000000  1000        0 4713 1 0000 100 0\n";

std::string Host(const TcpListener& listener) {
  char text[INET6_ADDRSTRLEN] = "";
  const auto* const four = reinterpret_cast<const sockaddr_in*>(&listener.address);
  const auto* const six = reinterpret_cast<const sockaddr_in6*>(&listener.address);
  const bool is_four = listener.address.ss_family == AF_INET;
  const void* const address = is_four ? static_cast<const void*>(&four->sin_addr) : &six->sin6_addr;
  return inet_ntop(listener.address.ss_family, address, text, sizeof(text)) == nullptr ? "" : text;
}

TEST(TcpListeners, ListenersAreReadFromTheKernelsTable) {
  const auto listeners = ParseTcpListeners(kTable);
  ASSERT_EQ(listeners.size(), 3u);
  EXPECT_EQ(listeners[0].port, 28028);
  EXPECT_EQ(listeners[0].inode, 4711u);
  EXPECT_EQ(Host(listeners[0]), "127.0.0.1");
  EXPECT_EQ(listeners[1].port, 22);
  EXPECT_EQ(Host(listeners[1]), "127.0.0.1");  // how one reaches a wildcard
  EXPECT_EQ(listeners[2].inode, 4713u);
  EXPECT_EQ(Host(listeners[2]), "::1");
}

TEST(TcpListeners, DamagedTablesDoNoHarm) {
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) {
    std::string damaged = std::string(kTable).substr(0, random() % sizeof(kTable));
    for (int hits = 0; hits < 3 && !damaged.empty(); ++hits) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    for (const TcpListener& listener : ParseTcpListeners(damaged)) {
      EXPECT_NE(listener.inode, 0u);
      EXPECT_GT(listener.size, 0u);
    }
  }
}

TEST(TcpListeners, ListenersAreFoundWithTheirOwner) {
  const runtime::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(socket.get(), 1), 0);
  ASSERT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto listeners = ListenersAt({ntohs(address.sin_port)});
  const auto ours = std::find_if(listeners.begin(), listeners.end(), [&](const TcpListener& listener) {
    return std::memcmp(&listener.address, &address, size) == 0;
  });
  ASSERT_NE(ours, listeners.end());
  const uint64_t inode = ours->inode;
  EXPECT_EQ(GroupsOfSockets({inode}, {::getpgrp()}).at(inode), ::getpgrp());
  EXPECT_TRUE(GroupsOfSockets({inode}, {::getpgrp() + 1}).empty());
  EXPECT_TRUE(ListenersAt({}).empty());
}

}  // namespace
}  // namespace cohort::launcher
