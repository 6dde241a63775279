// A thousand peers of one process: memory and descriptors for those that talk, and none for the others.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cohort/comm/transport/tcp/connection.h"
#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/comm/transport/tcp/handshake_socket.h"
#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/comm/transport/tcp/tcp_transport.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "tests/support/sanitized.h"
#include "tests/support/transport_world.h"

namespace cohort::comm {
namespace {

using runtime::Deadline;
using std::chrono::seconds;

constexpr int kPeers = 1000;
constexpr uint64_t kGroup = 1;
constexpr size_t kBytes = 3000;

size_t Descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// Other descriptors come and go: a new thread's allocator reads the number of CPUs from a file.
size_t Sockets() {
  size_t sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    sockets += std::filesystem::read_symlink(entry.path(), closed).string().rfind("socket:", 0) == 0 ? 1 : 0;
  }
  return sockets;
}

uint64_t ResidentKib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  uint64_t kib = 0;
  while (status >> word) {
    if (word == "VmRSS:") status >> kib;
  }
  return kib;
}

// A rank of which there is no more than its socket.
struct SimulatedPeer {
  std::unique_ptr<tcp::HandshakeTerms> terms;
  std::unique_ptr<tcp::HandshakeSocket> greeting;
  std::unique_ptr<tcp::Connection> connection;
};

tcp::HandshakeTerms TermsOf(int rank) {
  const runtime::Identity identity = TestIdentity(0, 2);
  return {identity.job_secret, identity.job_id,
          identity.epoch,      rank,
          kPeers + 1,          tcp::ConfigurationOf(tcp::LimitsOf(kPeers + 1))};
}

// Connects as `rank`, and sends one message when rank 0 has welcomed it.
std::string Begin(SimulatedPeer& peer, int rank, const std::string& address) {
  peer.terms = std::make_unique<tcp::HandshakeTerms>(TermsOf(rank));
  auto handshake = tcp::Handshake::Initiate(*peer.terms, 0);
  auto socket = tcp::StartConnect(*tcp::ParseAddress(address), 0);
  if (!handshake.ok() || !socket.ok()) return socket.status().ToString();
  peer.greeting = std::make_unique<tcp::HandshakeSocket>(0, *std::move(socket), *std::move(handshake),
                                                         tcp::HandshakeSocket::State::kConnecting);
  return "";
}

bool GoOn(SimulatedPeer& peer, int rank, const std::string& address) {
  if (peer.connection != nullptr) return true;
  const tcp::HandshakeSocket::State state = peer.greeting->Advance();
  // As a rank does whose connection had to make room for others.
  if (state == tcp::HandshakeSocket::State::kEnded) Begin(peer, rank, address);
  if (state != tcp::HandshakeSocket::State::kProved) return false;
  const tcp::Handshake& handshake = peer.greeting->handshake();
  peer.connection = std::make_unique<tcp::Connection>(peer.greeting->Release(), handshake.send_key(),
                                                      handshake.receive_key(), nullptr);
  static const std::vector<std::byte> data(kBytes, std::byte{5});
  tcp::FrameHeader header;
  header.epoch = 1;
  header.group = kGroup;
  header.signature = static_cast<uint64_t>(rank);
  header.frame_bytes = kBytes;
  header.message_bytes = kBytes;
  return peer.connection->Write(header, nullptr, data.data(), nullptr) == tcp::Connection::Written::kAll;
}

std::string SimulatePeers(SharedStore& store) {
  const auto text = store.Get("tcp/address/1/0", Deadline::After(seconds(30)));
  if (!text.ok()) return text.status().ToString();
  const std::string address = tcp::ParsePublished(*text)->addresses.front();
  tcp::TakeDescriptors();
  std::vector<SimulatedPeer> peers(kPeers);
  for (int i = 0; i < kPeers; ++i) {
    if (std::string problem = Begin(peers[static_cast<size_t>(i)], i + 1, address); !problem.empty()) return problem;
  }
  const Deadline deadline = Deadline::After(seconds(60));
  for (int done = 0; done < kPeers;) {
    if (deadline.passed()) return std::to_string(kPeers - done) + " peers were not let in";
    done = 0;
    for (int i = 0; i < kPeers; ++i) done += GoOn(peers[static_cast<size_t>(i)], i + 1, address) ? 1 : 0;
    usleep(2000);
  }
  return store.Get("received", Deadline::After(seconds(60))).ok() ? "" : "rank 0 did not receive all";
}

// Receives from all peers, in the order of their ranks, and looks at what that has cost.
std::string ReceiveFromAll(SharedStore& store) {
  TransportRank self;
  self.identity = TestIdentity(0, kPeers + 1);
  self.store = &store;
  const size_t descriptors = Descriptors();
  auto transport = MakeTcpTransport(self.identity, &store);
  if (!transport.ok()) return transport.status().ToString();
  self.transport = *std::move(transport);
  const uint64_t resident = ResidentKib();
  std::vector<std::unique_ptr<Link>> links;
  std::vector<std::byte> data(kBytes);
  for (int peer = 1; peer <= kPeers; ++peer) {
    links.push_back(self.Connect(peer, 0, kGroup));
    const absl::Status status = self.Recv(*links.back(), data.data(), kBytes, static_cast<uint64_t>(peer));
    if (!status.ok()) return "from rank " + std::to_string(peer) + ": " + status.ToString();
    if (data[kBytes - 1] != std::byte{5}) return "wrong data";
  }
  const size_t more = Descriptors() - descriptors;
  const uint64_t grown = ResidentKib() - resident;
  std::printf("1,000 peers: %zu descriptors, %llu KiB in all\n", more, static_cast<unsigned long long>(grown));
  (void)store.Put("received", "1");
  if (more > kPeers + 16) return "descriptors: " + std::to_string(more);
  // A sanitizer keeps two to four bytes of its own for each byte that is touched, and freed memory for a while.
  if (testing::kSanitized) return "";
  // 8.5 KiB to read into and 0.5 KiB of state each; the messages may all have come before their receives.
  return grown < kPeers * 40 ? "" : "memory: " + std::to_string(grown) + " KiB";
}

TEST(TcpManyPeers, PeersCostADescriptorAndSomeKibibytesEach) {
  SetTransport([](const runtime::Identity& identity, runtime::KeyValueStore*) {
    static SharedStore unused;
    return MakeTcpTransport(identity, &unused);
  });
  // Rank 1 simulates the peers; neither uses the transport of the frame.
  const std::vector<int> codes = RunRanks(
      2,
      [](TransportRank& self) -> std::string {
        self.transport.reset();
        return self.identity.rank == 0 ? ReceiveFromAll(*self.store) : SimulatePeers(*self.store);
      },
      seconds(150));
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
}

TEST(TcpManyPeers, PeersThatNeverTalkedCostNothing) {
  SetTransport([](const runtime::Identity& identity, runtime::KeyValueStore* store) {
    return MakeTcpTransport(identity, store);
  });
  const std::vector<int> codes = RunRanks(3, [](TransportRank& self) -> std::string {
    const int rank = self.identity.rank;
    const size_t before = Sockets();
    uint64_t value = 0;
    if (rank < 2) {
      auto link = self.Connect(1 - rank);
      const absl::Status sent = self.Send(*link, &value, 8);
      const absl::Status received = sent.ok() ? self.Recv(*link, &value, 8) : sent;
      if (!received.ok()) return received.ToString();
    }
    // One connection for the pair, once the other of two that were begun at the same moment is closed.
    const size_t expected = rank < 2 ? 1 : 0;
    if (!self.Drive([&] { return Sockets() - before == expected; }, seconds(20))) {
      return std::to_string(Sockets() - before) + " sockets more";
    }
    // Nobody ends, and closes its connection, before the others have counted theirs.
    (void)self.store->Put("counted/" + std::to_string(rank), "1");
    for (int other = 0; other < 3; ++other) {
      if (!self.store->Get("counted/" + std::to_string(other), Deadline::After(seconds(30))).ok()) return "no count";
    }
    return "";
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0, 0}));
}

}  // namespace
}  // namespace cohort::comm
