// Addresses in text are read back as the same, and anything else is refused.
#include "cohort/comm/transport/tcp/socket/sockets.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <string>

namespace cohort::comm::tcp {
namespace {

TEST(TcpSockets, AddressesReadBackAsTheSameText) {
  for (const char* text : {"10.0.0.1:4711", "127.0.0.1:1", "[fe80::1]:65535", "[::1]:80"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(ToText(*address), text);
  }
}

TEST(TcpSockets, TextsThatAreNoAddressAreRefused) {
  for (const char* text : {"", ":", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:123456",
                           "10.0.0:80", "host:80", "[fe80::1:80", "10.0.0.1:-1", "10.0.0.1:8x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseAddress(text).status())) << text;
  }
}

TEST(TcpSockets, ListensInThePortRangeThatIsGiven) {
  const int first = 20000 + getpid() % 20000;
  const std::string range = std::to_string(first) + "-" + std::to_string(first + 9);
  const auto one = Listen("127.0.0.1", range, 0);
  if (!one.ok()) GTEST_SKIP() << "ports of others: " << one.status();
  const auto two = Listen("127.0.0.1", range, 0);
  ASSERT_TRUE(two.ok()) << two.status();
  for (const auto* listener : {&*one, &*two}) {
    const auto addresses = AddressesOf(listener->get());
    ASSERT_TRUE(addresses.ok() && addresses->size() == 1);
    const int port = ParseAddress(addresses->front())->port();
    EXPECT_GE(port, first);
    EXPECT_LE(port, first + 9);
  }
  const auto taken = Listen("127.0.0.1", ParseAddress(AddressesOf(one->get())->front()).ok() ? range : "", 0);
  EXPECT_TRUE(taken.ok());
  const std::string port = std::to_string(ParseAddress(AddressesOf(one->get())->front())->port());
  const auto full = Listen("127.0.0.1", port + "-" + port, 0);
  EXPECT_NE(std::string(full.status().message()).find("COHORT_PORT_RANGE"), std::string::npos) << full.status();
}

}  // namespace
}  // namespace cohort::comm::tcp
