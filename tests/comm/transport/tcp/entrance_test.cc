// Connections on which nobody is proved yet: they keep their places until others need them, and recorded hellos push
// nobody out.
#include "cohort/comm/transport/tcp/entrance.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/comm/transport/tcp/socket/watch.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/comm/transport/tcp/terms_of.h"

namespace cohort::comm::tcp {
namespace {

using runtime::FileDescriptor;
using std::chrono::milliseconds;

constexpr uint64_t kListener = 1000;
constexpr uint64_t kFirst = 2000;
constexpr size_t kMostStrangers = 256;

class TcpEntrance : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(watch_.Open().ok());
    ASSERT_TRUE(entrance_.Open("127.0.0.1", "", 0).ok());
  }

  void Poll() {
    watch_.Look(
        [this](uint64_t token, bool) { token == kListener ? entrance_.OnListener() : entrance_.OnSocket(token); });
    entrance_.Poll([this](std::unique_ptr<HandshakeSocket> socket) {
      if (socket->SendReply()) proved_.push_back(socket->handshake().peer());
    });
  }
  bool PollUntil(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      Poll();
    }
    return true;
  }

  FileDescriptor Connect() const {
    const auto address = ParseAddress(entrance_.addresses().front());
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address->storage), address->bytes) != 0) {
      ADD_FAILURE() << "connect";
    }
    return socket;
  }
  static void Say(const FileDescriptor& socket, const HandshakeFrame& frame) {
    EXPECT_EQ(send(socket.get(), &frame, sizeof frame, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof frame));
  }
  // The other side's next frame; none where the connection has ended.
  std::optional<HandshakeFrame> Hear(const FileDescriptor& socket) {
    const auto readable = [&] {
      pollfd wait = {socket.get(), POLLIN, 0};
      return poll(&wait, 1, 0) == 1;
    };
    HandshakeFrame frame;
    if (!PollUntil(readable) || recv(socket.get(), &frame, sizeof frame, MSG_WAITALL) != sizeof frame) return {};
    return frame;
  }

  const HandshakeTerms terms_ = TermsOf(1);
  Watch watch_;
  Entrance entrance_{&terms_, &watch_, kListener, kFirst};
  std::vector<int> proved_;
};

TEST_F(TcpEntrance, ASilentConnectionKeepsItsPlaceWhileNobodyQueues) {
  std::vector<FileDescriptor> silent;
  for (size_t i = 0; i < kMostStrangers; ++i) silent.push_back(Connect());
  ASSERT_TRUE(PollUntil([&] { return entrance_.waiting() == kMostStrangers; }));
  std::this_thread::sleep_for(milliseconds(150));  // from 100 ms on they may lose their places
  entrance_.OnListener();
  for (int i = 0; i < 10; ++i) Poll();
  EXPECT_EQ(entrance_.waiting(), kMostStrangers);
  // One that queues takes the oldest one's place.
  silent.push_back(Connect());
  EXPECT_EQ(Hear(silent.front()), std::nullopt);
  EXPECT_EQ(entrance_.waiting(), kMostStrangers);
}

TEST_F(TcpEntrance, ARecordedHelloPushesNobodyOut) {
  for (const int rank : {0, 2}) {
    const HandshakeTerms terms = TermsOf(rank);
    Handshake handshake = *Handshake::Initiate(terms, 1);
    const FileDescriptor own = Connect();
    Say(own, handshake.Hello());
    const auto answer = Hear(own);
    ASSERT_TRUE(answer.has_value());
    std::vector<FileDescriptor> strangers;
    for (int i = 0; i < 40; ++i) {
      strangers.push_back(Connect());
      Say(strangers.back(), handshake.Hello());
    }
    ASSERT_TRUE(PollUntil([&] { return entrance_.waiting() <= 1; }));
    Say(own, **handshake.Take(*answer));
    const auto welcome = Hear(own);
    ASSERT_TRUE(welcome.has_value());
    EXPECT_TRUE(handshake.Take(*welcome).ok());
    EXPECT_EQ(handshake.state(), Handshake::State::kProved);
    EXPECT_EQ(proved_.back(), rank);
  }
  EXPECT_EQ(proved_.size(), 2u);
}

}  // namespace
}  // namespace cohort::comm::tcp
