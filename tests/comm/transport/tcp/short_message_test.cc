// Short messages by a link's short streams, among operations on the same link and frames of others: each comes once, in
// order, and what is not the expected message is left to operations.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/transport/tcp/connection.h"
#include "cohort/comm/transport/tcp/link.h"
#include "cohort/comm/transport/tcp/link_state.h"
#include "cohort/comm/transport/tcp/peer.h"
#include "cohort/comm/transport/tcp/socket/sockets.h"

namespace cohort::comm::tcp {
namespace {

constexpr int kPatience = 30'000;  // ms
constexpr FlowLimits kLimits = {1 << 20};
constexpr uint64_t kGroup = 5;

runtime::CallRecord CallOf(uint64_t signature) {
  runtime::CallRecord call;
  call.wire_signature = signature;
  return call;
}

// One process of a pair: the transport's part without polling.
class Side : public PeerKeeper {
 public:
  Side(runtime::FileDescriptor socket, int peer_rank) {
    peer_.world_rank = peer_rank;
    peer_.keeper = this;
    peer_.awaited_peers = &awaited_;
    peer_.state = PeerState::kConnected;
    peer_.connection = std::make_unique<Connection>(std::move(socket), net::SessionKey{}, net::SessionKey{},
                                                    std::make_unique<FrameRouter>(&links_, &peer_));
    link = Make(kGroup);
  }
  ~Side() override { link.reset(); }

  std::unique_ptr<TcpLink> Make(uint64_t group) {
    return std::make_unique<TcpLink>(&links_, links_.Claim({group, 1, 0, peer_.world_rank}, peer_), false);
  }
  bool Send(const void* data, size_t bytes, uint64_t signature) {
    return link->short_sender()->Send(static_cast<const std::byte*>(data), bytes, CallOf(signature));
  }
  // Looks until it is there.
  bool Receive(void* data, size_t bytes, uint64_t signature, int looks = kPatience) {
    const ShortReceive receive{.data = static_cast<std::byte*>(data), .bytes = bytes, .signature = signature};
    for (int i = 0; i < looks; ++i) {
      if (link->short_receiver()->Receive(receive)) return true;
      poll(nullptr, 0, 1);
    }
    return false;
  }
  // Reads what is there; frames that nobody waits for are kept.
  bool Read(bool keep) {
    peer_.connection->OnEvent(false);
    return peer_.connection->Read(keep, false, nullptr);
  }
  Connection& connection() { return *peer_.connection; }

  void WantConnection(Peer&) override {}
  void FailPeer(Peer&, const absl::Status& status) override { ADD_FAILURE() << status; }
  bool ReadFor(Peer&, bool, const bool* enough) override {
    peer_.connection->OnEvent(false);
    return peer_.connection->Read(false, false, enough);
  }
  bool PeekShort(Peer&, FrameHeader* header, const std::byte** data) override {
    return peer_.connection->PeekShort(header, data);
  }
  void TakeShort(Peer&, const FrameHeader& header) override { peer_.connection->TakeShort(header); }
  void OnWriteError(Peer&) override { ADD_FAILURE() << peer_.connection->write_error(); }
  void ReportLater(LinkReceiver&) override { ADD_FAILURE() << "a report did not fit"; }

 private:
  size_t pending_ = 0;
  size_t awaited_ = 0;
  Peer peer_;
  LinkTable links_{LinkMaker(kLimits, &pending_)};

 public:
  std::unique_ptr<TcpLink> link;
};

class TcpShortMessage : public ::testing::Test {
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
    runtime::FileDescriptor other = AcceptFrom(listener->get(), &error);
    ASSERT_TRUE(other.valid());
    // So that sockets are full soon; with less than two of loopback's segments a reader would have to wait for probes.
    const int small = 1, of_reader = 256 << 10;
    setsockopt(socket->get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    setsockopt(other.get(), SOL_SOCKET, SO_RCVBUF, &of_reader, sizeof of_reader);
    a_ = std::make_unique<Side>(*std::move(socket), 1);
    b_ = std::make_unique<Side>(std::move(other), 0);
  }
  Progress Drive(SendOperation& operation) {
    Progress progress = Progress::kBlocked;
    for (int i = 0; i < kPatience && (progress == Progress::kBlocked || progress == Progress::kMoved); ++i) {
      progress = a_->link->TrySend(operation);
    }
    return progress;
  }
  Progress Drive(RecvOperation& operation) {
    Progress progress = Progress::kBlocked;
    for (int i = 0; i < kPatience && (progress == Progress::kBlocked || progress == Progress::kMoved); ++i) {
      progress = b_->link->TryRecv(operation);
      if (progress == Progress::kBlocked) poll(nullptr, 0, 1);
    }
    return progress;
  }

  std::unique_ptr<Side> a_, b_;
};

TEST_F(TcpShortMessage, MessagesOfAnyLengthComeWholeInBothDirections) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8}, size_t{1000}, kMostShortBytes}) {
    std::vector<uint8_t> sent(bytes), back(bytes), got(bytes), got_back(bytes);
    for (size_t i = 0; i < bytes; ++i) back[i] = static_cast<uint8_t>(3 * (sent[i] = static_cast<uint8_t>(i + bytes)));
    ASSERT_TRUE(a_->Send(sent.data(), bytes, 1 + bytes));
    ASSERT_TRUE(b_->Send(back.data(), bytes, 2 + bytes));
    ASSERT_TRUE(b_->Receive(got.data(), bytes, 1 + bytes));
    ASSERT_TRUE(a_->Receive(got_back.data(), bytes, 2 + bytes));
    EXPECT_EQ(got, sent);
    EXPECT_EQ(got_back, back);
  }
}

TEST_F(TcpShortMessage, AMessageIsReducedWhateverItsPlaceInTheStream) {
  const auto subtract = [](void* to, const void* x, const void* y, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      static_cast<int64_t*>(to)[i] = static_cast<const int64_t*>(x)[i] - static_cast<const int64_t*>(y)[i];
    }
  };
  const std::array<int64_t, 2> sent{5, 7}, own{100, 1000};
  uint8_t odd = 1;
  ASSERT_TRUE(a_->Send(&odd, 1, 1));  // the next one is not aligned
  ASSERT_TRUE(a_->Send(sent.data(), sizeof sent, 2));
  ASSERT_TRUE(a_->Send(sent.data(), sizeof sent, 3));
  ASSERT_TRUE(b_->Receive(&odd, 1, 1));
  std::array<int64_t, 2> result{};
  ShortReceive receive{.data = reinterpret_cast<std::byte*>(result.data()),
                       .operand = reinterpret_cast<const std::byte*>(own.data()),
                       .reduce = subtract,
                       .count = 2,
                       .bytes = sizeof sent,
                       .signature = 2};
  ASSERT_TRUE(b_->link->short_receiver()->Receive(receive));
  EXPECT_EQ(result, (std::array<int64_t, 2>{95, 993}));
  receive.incoming_first = true;
  receive.signature = 3;
  ASSERT_TRUE(b_->link->short_receiver()->Receive(receive));
  EXPECT_EQ(result, (std::array<int64_t, 2>{-95, -993}));
}

TEST_F(TcpShortMessage, AMessageOfAnotherCallIsLeftToTheOperationWithItsRecord) {
  std::array<std::byte, 16> data{};
  ASSERT_TRUE(a_->Send(data.data(), 8, 11));
  EXPECT_FALSE(b_->Receive(data.data(), 8, 12, 20));
  EXPECT_FALSE(b_->Receive(data.data(), 16, 11, 20));
  RecvOperation operation;
  operation.data = data.data();
  operation.bytes = 8;
  operation.signature = 12;
  ASSERT_EQ(Drive(operation), Progress::kFailed);
  EXPECT_TRUE(operation.mismatch);
  EXPECT_EQ(operation.peer_signature, 11u);
  EXPECT_EQ(operation.peer_call.wire_signature, 11u);
}

TEST_F(TcpShortMessage, AMessageIsFoundBehindOthers) {
  const auto other_a = a_->Make(kGroup + 1);
  const auto other_b = b_->Make(kGroup + 1);
  int value = 1, got = 0, other = 2, other_got = 0;
  RecvOperation operation;
  operation.data = reinterpret_cast<std::byte*>(&other_got);
  operation.bytes = sizeof other_got;
  operation.signature = 9;
  EXPECT_EQ(other_b->TryRecv(operation), Progress::kBlocked);
  ASSERT_TRUE(other_a->short_sender()->Send(reinterpret_cast<std::byte*>(&other), sizeof other, CallOf(9)));
  ASSERT_TRUE(a_->Send(&value, sizeof value, 1));
  EXPECT_TRUE(b_->Receive(&got, sizeof got, 1));
  EXPECT_EQ(got, 1);
  EXPECT_EQ(other_b->TryRecv(operation), Progress::kDone);
  EXPECT_EQ(other_got, 2);
}

TEST_F(TcpShortMessage, AMessageIsFoundWhereItWasHeldOrKept) {
  int value = 1, got = 0;
  for (const bool keep : {false, true, false, true, true}) {
    ++value;
    ASSERT_TRUE(a_->Send(&value, sizeof value, static_cast<uint64_t>(value)));
    for (int i = 0; i < kPatience && !b_->Read(keep); ++i) poll(nullptr, 0, 1);
    EXPECT_EQ(b_->connection().holding(), !keep);
    EXPECT_TRUE(b_->Receive(&got, sizeof got, static_cast<uint64_t>(value), 1));
    EXPECT_EQ(got, value);
  }
}

TEST_F(TcpShortMessage, AMessageWaitsForEarlierOperations) {
  int value = 3, first = 0, second = 0;
  RecvOperation receive;
  receive.data = reinterpret_cast<std::byte*>(&first);
  receive.bytes = sizeof first;
  receive.signature = 1;
  EXPECT_EQ(b_->link->TryRecv(receive), Progress::kBlocked);
  ASSERT_TRUE(a_->Send(&value, sizeof value, 1));
  EXPECT_FALSE(b_->Receive(&second, sizeof second, 2, 3));
  const std::vector<std::byte> large(8 << 20, std::byte{1});
  SendOperation send;
  send.data = large.data();
  send.bytes = large.size();
  send.signature = 2;
  EXPECT_NE(a_->link->TrySend(send), Progress::kDone);
  EXPECT_FALSE(a_->Send(&value, sizeof value, 3));
  EXPECT_EQ(Drive(receive), Progress::kDone);
  EXPECT_EQ(first, 3);
  a_->link.reset();  // before what it sends
}

// A message that does not fit becomes an operation, which finds the part of it that the socket has taken.
TEST_F(TcpShortMessage, AMessageGoesOnAsAnOperationWhereTheSocketIsFull) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::array<uint64_t, kMostShortBytes / 8> data{}, got{};
  constexpr int kRounds = 30;
  int begun = 0, refused = 0;
  uint64_t sent = 0, received = 0;
  std::vector<size_t> lengths;  // of those on their way
  const auto receive_some = [&](size_t leave) {
    while (lengths.size() - received > leave) {
      ASSERT_TRUE(b_->Receive(got.data(), lengths[received], received + 1));
      for (size_t i = 0; i < lengths[received] / 8; ++i) ASSERT_EQ(got[i], received + i);
      ++received;
    }
  };
  for (int round = 0; round < kRounds; ++round) {
    bool full = false;
    while (!full) {
      const size_t bytes = 8 * (random() % (kMostShortBytes / 8 + 1));
      for (size_t i = 0; i < bytes / 8; ++i) data[i] = sent + i;
      lengths.push_back(bytes);
      ++sent;
      full = !a_->Send(data.data(), bytes, sent);
    }
    begun += a_->connection().flushing() ? 1 : 0;
    ++refused;
    SendOperation operation;
    operation.data = reinterpret_cast<const std::byte*>(data.data());
    operation.bytes = lengths.back();
    operation.signature = sent;
    const runtime::CallRecord call = CallOf(sent);
    operation.call = &call;
    Progress progress = a_->link->TrySend(operation);
    receive_some(1 + random() % 8);
    for (int i = 0; i < kPatience && progress != Progress::kDone; ++i) {
      ASSERT_NE(progress, Progress::kFailed) << operation.error;
      a_->Read(false);  // grants
      receive_some(1);
      progress = a_->link->TrySend(operation);
    }
    ASSERT_EQ(progress, Progress::kDone);
    receive_some(0);
  }
  EXPECT_EQ(received, sent);
  EXPECT_EQ(refused, kRounds);
  EXPECT_GT(begun, 0);
}

}  // namespace
}  // namespace cohort::comm::tcp
