// Bytes in flight as a connection counts them when the other side ends.
#include "cohort/comm/transport/tcp/connection.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/comm/transport/tcp/socket/sockets.h"

namespace cohort::comm::tcp {
namespace {

constexpr int kPatience = 30'000;  // ms

class TcpConnection : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto listener = Listen("127.0.0.1", "", 0);
    ASSERT_TRUE(listener.ok()) << listener.status();
    const auto addresses = AddressesOf(listener->get());
    auto socket = StartConnect(*ParseAddress(addresses->front()), 0);
    ASSERT_TRUE(socket.ok()) << socket.status();
    pollfd waiting = {listener->get(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, kPatience), 1);
    int error = 0;
    other_ = AcceptFrom(listener->get(), &error);
    ASSERT_TRUE(other_.valid());
    connection_.emplace(*std::move(socket), net::SessionKey{}, net::SessionKey{}, nullptr);
  }
  // Writes a frame without an owner.
  Connection::Written Write(const std::vector<std::byte>& data) {
    FrameHeader header;
    header.frame_bytes = static_cast<uint32_t>(data.size());
    return connection_->Write(header, nullptr, data.data(), nullptr);
  }
  // Whether the other side has acknowledged all within the test's patience.
  bool Acknowledged() {
    for (int i = 0; i < kPatience; ++i) {
      if (!connection_->unacknowledged()) return true;
      poll(nullptr, 0, 1);
    }
    return false;
  }

  runtime::FileDescriptor other_;
  std::optional<Connection> connection_;
};

TEST_F(TcpConnection, BytesThatThePeersKernelHasTakenAreAcknowledged) {
  const std::vector<std::byte> data(1000);
  EXPECT_EQ(Write(data), Connection::Written::kAll);
  EXPECT_TRUE(Acknowledged());
}

TEST_F(TcpConnection, BytesThatDoNotFitAreNotAcknowledged) {
  const std::vector<std::byte> data(64 << 20);
  EXPECT_EQ(Write(data), Connection::Written::kPartly);
  EXPECT_TRUE(connection_->unacknowledged());
}

// A reset leaves in the kernel's count what was in flight: a wait for it would be in vain.
TEST_F(TcpConnection, NothingIsAwaitedOfAPeerThatHasReset) {
  const std::vector<std::byte> data(64 << 20);
  EXPECT_EQ(Write(data), Connection::Written::kPartly);
  other_.Close();  // with bytes unread, so it resets
  EXPECT_TRUE(Acknowledged());
}

TEST_F(TcpConnection, NothingIsAwaitedOfAPeerThatHasClosed) {
  other_.Close();
  const std::vector<std::byte> data(1000);
  Write(data);  // is answered by a reset
  EXPECT_TRUE(Acknowledged());
}

}  // namespace
}  // namespace cohort::comm::tcp
