// The guard at the rendezvous' port, with the connections that it hands over kept here instead of by gRPC.
#include "cohort/launcher/rpc/connection_guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/base/net/listener.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/mutex.h"
#include "tests/launcher/rpc/patience.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using runtime::FileDescriptor;
using std::chrono::milliseconds;
using std::chrono::seconds;

FileDescriptor NewSocket() { return FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

sockaddr_in At(int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(port));
  return to;
}

void Say(const FileDescriptor& socket, char byte) { EXPECT_EQ(::send(socket.get(), &byte, 1, MSG_NOSIGNAL), 1); }
constexpr char kTls = 0x16;

// Its other side has closed it.
bool Ends(const FileDescriptor& socket) {
  pollfd polled{socket.get(), POLLIN, 0};
  char byte = 0;
  return ::poll(&polled, 1, static_cast<int>(milliseconds(kPatience).count())) == 1 &&
         ::recv(socket.get(), &byte, 1, 0) <= 0;
}
bool IsOpen(const FileDescriptor& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

class ConnectionGuardTest : public ::testing::Test {
 protected:
  ~ConnectionGuardTest() override { guard_.reset(); }

  void Start(size_t max_unproven, milliseconds limit) {
    absl::StatusOr<Listener> listener = ListenOn({"127.0.0.1"}, 0);
    ASSERT_TRUE(listener.ok()) << listener.status();
    port_ = listener->port;
    auto guard = ConnectionGuard::Create(*std::move(listener), {.max_unproven = max_unproven, .limit = limit},
                                         [this](FileDescriptor connection) {
                                           const runtime::MutexLock lock(mutex_);
                                           handed_.push_back(std::move(connection));
                                           changed_.NotifyAll();
                                         });
    ASSERT_TRUE(guard.ok()) << guard.status();
    guard_ = *std::move(guard);
    guard_->Start();
  }
  void Dial(const FileDescriptor& socket) const {
    const sockaddr_in to = At(port_);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  FileDescriptor Dial() const {
    FileDescriptor socket = NewSocket();
    Dial(socket);
    return socket;
  }
  // Returns gRPC's name for that side of it.
  static std::string NameOf(const FileDescriptor& socket) {
    sockaddr_in own{};
    socklen_t size = sizeof own;
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
    return "ipv4:127.0.0.1:" + std::to_string(ntohs(own.sin_port));
  }
  bool AwaitHanded(size_t count) {
    const Deadline deadline = Deadline::After(kPatience);
    const runtime::MutexLock lock(mutex_);
    while (handed_.size() < count && changed_.Wait(mutex_, deadline)) {
    }
    return handed_.size() >= count;
  }

  int port_ = 0;
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::vector<FileDescriptor> handed_;
  std::unique_ptr<ConnectionGuard> guard_;
};

TEST_F(ConnectionGuardTest, TheOldestSilentConnectionGoesWhenThereAreTooMany) {
  Start(4, kPatience);
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 12; ++i) strangers.push_back(Dial());
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Ends(strangers[i])) << i;
  for (int i = 8; i < 12; ++i) EXPECT_TRUE(IsOpen(strangers[i])) << i;
  const FileDescriptor speaker = Dial();
  Say(speaker, kTls);
  EXPECT_TRUE(AwaitHanded(1));
  for (int i = 0; i < 12; ++i) strangers.push_back(Dial());
  EXPECT_TRUE(Ends(strangers[12]));
  EXPECT_TRUE(IsOpen(speaker)) << "the silent do not push out who speaks";
}

TEST_F(ConnectionGuardTest, TheOldestUnprovenConnectionGoesBeforeProvenOnes) {
  Start(3, kPatience);
  std::vector<FileDescriptor> peers;
  for (size_t i = 0; i < 3; ++i) {
    peers.push_back(Dial());
    Say(peers.back(), kTls);
    ASSERT_TRUE(AwaitHanded(i + 1));
  }
  guard_->Proven(NameOf(peers[0]));
  for (size_t i = 3; i < 8; ++i) {
    peers.push_back(Dial());
    Say(peers.back(), kTls);
    ASSERT_TRUE(AwaitHanded(i + 1));
  }
  for (size_t i = 1; i < 5; ++i) {
    char byte = 0;
    EXPECT_EQ(::recv(peers[i].get(), &byte, 1, 0), 0) << i;  // the one that it was handed to still has it open
  }
  for (const size_t i : {size_t{0}, size_t{5}, size_t{6}, size_t{7}}) EXPECT_TRUE(IsOpen(peers[i])) << i;
}

TEST_F(ConnectionGuardTest, ASilentConnectionEndsInTime) {
  Start(4, milliseconds(50));
  EXPECT_TRUE(Ends(Dial()));
}

TEST_F(ConnectionGuardTest, AConnectionWithoutTlsIsNeverHandedOver) {
  Start(4, kPatience);
  const FileDescriptor http = Dial();
  Say(http, 'G');
  EXPECT_TRUE(Ends(http));
  Dial().Close();
  const FileDescriptor speaker = Dial();
  Say(speaker, kTls);
  EXPECT_TRUE(AwaitHanded(1));
  const runtime::MutexLock lock(mutex_);
  EXPECT_EQ(handed_.size(), 1u);
}

TEST_F(ConnectionGuardTest, TheGuardGoesOnWhenThereAreDescriptorsAgain) {
  Start(4, kPatience);
  const FileDescriptor first = NewSocket(), second = NewSocket();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{std::min<rlim_t>(before.rlim_cur, 256), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<FileDescriptor> others;
  for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) others.emplace_back(fd);
  EXPECT_EQ(errno, EMFILE);
  Dial(first);
  Say(first, kTls);
  Dial(second);
  Say(second, kTls);
  others.clear();
  EXPECT_TRUE(AwaitHanded(2));
  EXPECT_TRUE(IsOpen(first));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(PeerKey, AnAddressAndItsGrpcNameHaveTheSameKey) {
  sockaddr_storage four{};
  reinterpret_cast<sockaddr_in&>(four) = At(4711);
  EXPECT_FALSE(PeerKey(four).empty());
  EXPECT_EQ(PeerKey(four), PeerKey("ipv4:127.0.0.1:4711"));
  EXPECT_NE(PeerKey(four), PeerKey("ipv4:127.0.0.1:4712"));
  EXPECT_NE(PeerKey(four), PeerKey("ipv4:127.0.0.2:4711"));
  sockaddr_storage storage{};
  auto& six = reinterpret_cast<sockaddr_in6&>(storage);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(4711);
  ASSERT_EQ(::inet_pton(AF_INET6, "::ffff:127.0.0.1", &six.sin6_addr), 1);
  EXPECT_EQ(PeerKey(storage), PeerKey("ipv4:127.0.0.1:4711"));
  ASSERT_EQ(::inet_pton(AF_INET6, "fe80::1", &six.sin6_addr), 1);
  for (const char* name : {"ipv6:%5Bfe80::1%5D:4711", "ipv6:[fe80::1]:4711", "ipv6:%5Bfe80::1%25eth0%5D:4711"}) {
    EXPECT_EQ(PeerKey(storage), PeerKey(name)) << name;
  }
  EXPECT_EQ(PeerKey("unix:/tmp/x"), "");
}

TEST(PeerHost, APeersHostIsItsAddressWithoutPortAndScope) {
  EXPECT_EQ(PeerHost("ipv4:127.0.0.1:4711"), "127.0.0.1");
  for (const char* name : {"ipv6:%5Bfe80::1%5D:4711", "ipv6:[fe80::1]:4711", "ipv6:%5Bfe80::1%25eth0%5D:4711"}) {
    EXPECT_EQ(PeerHost(name), "fe80::1") << name;
  }
  EXPECT_EQ(PeerHost("unix:/tmp/x"), "");
}

}  // namespace
}  // namespace cohort::launcher
