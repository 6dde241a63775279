// The transport under random delays: several processes, more than there are CPUs, publish to all and send around a
// ring, messages of every kind and size, interrupted at random instructions and stopped at random moments; they sleep
// when there is nothing to do. Every byte of every message is compared. A sleep that lasts kLongestSleep, in which
// nobody has anything to do but to go on, is a wake-up that was lost.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/runtime/engine/sleeper.h"
#include "tests/comm/transport/shm/forked_ranks.h"
#include "tests/comm/transport/shm/local_world.h"
#include "tests/comm/transport/shm/random_delays.h"
#include "tests/support/nightly.h"

namespace cohort::comm {
namespace {

using testing::ForkedRanks;
using testing::Pattern;

constexpr std::chrono::seconds kLongestSleep{20};
constexpr size_t kLongest = 600'000;
constexpr size_t kGuard = 64;
constexpr std::byte kUntouched{0xa5};

struct Program {
  uint64_t seed = 0;
  int ranks = 2;
  int messages = 0;                   // of each stream
  std::optional<bool> private_reads;  // as ShmOptions has it
};

// Holds what both sides of a stream know of its message with this number.
struct Message {
  Message(const Program& program, int stream, int number, size_t longest)
      : seed(program.seed * 1'000'003 + static_cast<uint64_t>(stream) * 100'000 + static_cast<uint64_t>(number)) {
    std::mt19937_64 random(seed);
    const size_t limits[] = {49, 49, 300, 8193, 40'000, kLongest};
    bytes = random() % std::min(longest + 1, limits[random() % std::size(limits)]);
    window = random() % 3 == 0;
    reduced = random() % 3 == 0;
    if (reduced) bytes = bytes / 8 * 8;
  }
  std::vector<std::byte> Content() const { return Pattern(bytes, seed); }

  uint64_t seed;  // and signature
  size_t bytes;
  bool window;   // where the sender has it
  bool reduced;  // by the receiver
};

// One side of a stream: up to a few messages under way.
class Outgoing {
 public:
  using Try = std::function<Progress(SendOperation&)>;
  Outgoing(const Program& program, int stream, size_t longest, runtime::Segment& segment, Try attempt)
      : program_(program), stream_(stream), longest_(longest), segment_(segment), try_(std::move(attempt)) {}
  bool done() const { return next_ == program_.messages && pending_.empty(); }

  Progress Step(std::mt19937_64& random) {
    if (next_ < program_.messages && pending_.size() < 3 && (pending_.empty() || random() % 2 == 0)) Begin();
    bool moved = false;
    for (auto& pending : pending_) {  // later ones may overtake those that wait for their readers
      if (pending->done) continue;
      const Progress progress = try_(pending->operation);
      EXPECT_NE(progress, Progress::kFailed) << pending->operation.error;
      moved |= progress != Progress::kBlocked;
      if (progress != Progress::kDone) continue;
      pending->done = true;
      // A reader that reads it now sees that it was done too early.
      if (pending->bytes > 0) std::memset(pending->data, 0xee, pending->bytes);
      if (pending->block.bytes > 0) segment_.Free(pending->block);
    }
    while (!pending_.empty() && pending_.front()->done) pending_.pop_front();
    return moved ? Progress::kMoved : Progress::kBlocked;
  }

 private:
  struct Pending {
    SendOperation operation;
    std::vector<std::byte> content;
    runtime::SegmentBlock block;
    std::byte* data = nullptr;
    size_t bytes = 0;
    bool done = false;
  };

  void Begin() {
    const Message message(program_, stream_, next_++, longest_);
    auto pending = std::make_unique<Pending>();
    pending->content = message.Content();
    pending->bytes = message.bytes;
    pending->data = pending->content.data();
    if (message.window && message.bytes > 0) {
      if (auto block = segment_.Allocate(message.bytes); block.ok()) {
        pending->block = *block;
        pending->data = static_cast<std::byte*>(*segment_.Map(*block));
        std::memcpy(pending->data, pending->content.data(), message.bytes);
      }
    }
    pending->operation = testing::SendOf(pending->data, message.bytes, message.seed);
    pending_.push_back(std::move(pending));
  }

  const Program& program_;
  const int stream_;
  const size_t longest_;
  runtime::Segment& segment_;
  const Try try_;
  int next_ = 0;
  std::deque<std::unique_ptr<Pending>> pending_;
};

class Incoming {
 public:
  using Try = std::function<Progress(RecvOperation&)>;
  Incoming(const Program& program, int stream, size_t longest, Try attempt)
      : program_(program), stream_(stream), longest_(longest), try_(std::move(attempt)) {}
  bool done() const { return next_ == program_.messages && pending_ == nullptr; }

  Progress Step() {
    if (pending_ == nullptr) {
      if (next_ == program_.messages) return Progress::kBlocked;
      Begin();
    }
    const Progress progress = try_(pending_->operation);
    EXPECT_NE(progress, Progress::kFailed) << pending_->operation.error;
    if (progress == Progress::kDone) {
      EXPECT_EQ(pending_->memory, pending_->expected)
          << "message " << next_ - 1 << " of stream " << stream_ << ", " << pending_->operation.bytes << " bytes";
      pending_ = nullptr;
    }
    return progress;
  }

 private:
  struct Pending {
    RecvOperation operation;
    std::vector<std::byte> memory;    // with guards on both sides
    std::vector<std::byte> expected;  // likewise
    std::vector<std::byte> operand;
  };

  void Begin() {
    const Message message(program_, stream_, next_++, longest_);
    pending_ = std::make_unique<Pending>();
    pending_->memory.assign(message.bytes + 2 * kGuard, kUntouched);
    pending_->expected = pending_->memory;
    std::byte* expected = pending_->expected.data() + kGuard;
    const std::vector<std::byte> content = message.Content();
    pending_->operation = testing::RecvOf(pending_->memory.data() + kGuard, message.bytes, message.seed);
    if (message.reduced) {
      pending_->operand = Pattern(message.bytes, message.seed + 1);
      pending_->operation.operand = pending_->operand.data();
      pending_->operation.reduce = testing::Subtract<uint64_t>;
      pending_->operation.element_bytes = 8;
      testing::Subtract<uint64_t>(expected, pending_->operand.data(), content.data(), message.bytes / 8);
    } else if (message.bytes > 0) {
      std::memcpy(expected, content.data(), message.bytes);
    }
  }

  const Program& program_;
  const int stream_;
  const size_t longest_;
  const Try try_;
  int next_ = 0;
  std::unique_ptr<Pending> pending_;
};

// A rank's streams: a fan-out to all, from all, and a link to each neighbour of the ring.
class StressedRank {
 public:
  StressedRank(const Program& program, const ForkedRanks::Child& child)
      : program_(program),
        rank_(child.rank),
        random_(program.seed * 64 + static_cast<uint64_t>(child.rank)),
        sleeper_(&child.segment),
        transport_(child.MakeTransport({.private_reads = program.private_reads})) {
    const int ranks = program.ranks;
    FanoutSpec spec{.group = 1, .epoch = 1, .group_rank = rank_, .world_ranks = {}, .lane = 0};
    for (int member = 0; member < ranks; ++member) spec.world_ranks.push_back(member);
    fanout_ = *transport_->ConnectFanout(spec);
    const size_t longest = fanout_->max_bytes();
    out_.emplace_back(program_, rank_, longest, child.segment,
                      [this](SendOperation& send) { return fanout_->TryPublish(send); });
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank_) continue;
      in_.emplace_back(program_, peer, longest,
                       [this, peer](RecvOperation& recv) { return fanout_->TryRecv(peer, recv); });
    }
    next_ = Connect((rank_ + 1) % ranks, 0);
    previous_ = Connect((rank_ + ranks - 1) % ranks, 1);
    out_.emplace_back(program_, ranks + rank_, kLongest, child.segment,
                      [this](SendOperation& send) { return next_->TrySend(send); });
    in_.emplace_back(program_, ranks + (rank_ + ranks - 1) % ranks, kLongest,
                     [this](RecvOperation& recv) { return previous_->TryRecv(recv); });
  }

  void Run() {
    while (!Done() && !::testing::Test::HasFailure()) {
      bool moved = false;
      for (uint64_t tries = 1 + random_() % 20; tries > 0; --tries) moved |= StepAll();
      if (!moved && !Done()) Park();
    }
  }

 private:
  // Two ranks have two links, one in each direction of the ring.
  std::unique_ptr<Link> Connect(int peer, int from_previous) {
    const int sender = from_previous == 1 ? peer : rank_;
    auto link =
        transport_->Connect({.group = 2, .epoch = 1, .peer_world_rank = peer, .lane = static_cast<uint16_t>(sender)});
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }

  bool Done() const {
    return std::all_of(out_.begin(), out_.end(), [](const Outgoing& stream) { return stream.done(); }) &&
           std::all_of(in_.begin(), in_.end(), [](const Incoming& stream) { return stream.done(); });
  }

  bool StepAll() {
    bool moved = false;
    for (Outgoing& stream : out_) moved |= stream.Step(random_) != Progress::kBlocked;
    for (Incoming& stream : in_) moved |= stream.Step() != Progress::kBlocked;
    return moved;
  }

  void Park() {
    const uint32_t token = sleeper_.Announce();
    if (!StepAll() && !Done()) {
      const auto deadline = runtime::Deadline::After(kLongestSleep);
      sleeper_.Sleep(token, {}, deadline);
      EXPECT_FALSE(deadline.passed()) << "rank " << rank_ << " was not woken";
    }
    sleeper_.Withdraw();
  }

  const Program program_;
  const int rank_;
  std::mt19937_64 random_;
  runtime::Sleeper sleeper_;
  std::unique_ptr<ShmTransport> transport_;
  std::unique_ptr<Fanout> fanout_;
  std::unique_ptr<Link> next_, previous_;
  std::deque<Outgoing> out_;
  std::deque<Incoming> in_;
};

TEST(ShmStress, EveryByteArrivesAndNobodySleepsForEver) {
  const uint64_t first = std::random_device{}() % 1'000'000;
  const auto programs = static_cast<uint64_t>(cohort::testing::Trials(6, 600));
  constexpr std::optional<bool> kReads[] = {std::nullopt, true, false};
  for (uint64_t i = 0; i < programs && !HasFailure(); ++i) {
    const Program program{.seed = first + i,
                          .ranks = 2 + static_cast<int>(i % 5),
                          .messages = static_cast<int>(cohort::testing::Trials(150, 600)),
                          .private_reads = kReads[i % 3]};
    SCOPED_TRACE("seed " + std::to_string(program.seed) + ", " + std::to_string(program.ranks) + " ranks");
    ForkedRanks ranks(program.ranks, [&program](const ForkedRanks::Child& child) {
      StressedRank rank(program, child);
      // Nobody is woken when a peer makes its side.
      child.shared.words[0].fetch_add(1);
      ASSERT_TRUE(
          testing::WaitFor([&] { return child.shared.words[0].load() == static_cast<uint32_t>(program.ranks); }));
      testing::BeginRandomDelays(program.seed * 64 + static_cast<uint64_t>(child.rank));
      rank.Run();
    });
    testing::StopAndGoOn(ranks, program.seed);
    ranks.ExpectAllSucceed();
  }
}

// Two ranks send a word to and fro; each sleeps as soon as it finds nothing, while the other is about to publish or to
// acknowledge. No delays here: what a fence orders is a few instructions wide, and an interrupt is a fence too.
TEST(ShmStress, NoWakeUpIsLostAtTheMomentOfGoingToSleep) {
  const auto rounds = static_cast<uint64_t>(cohort::testing::Trials(30'000, 3'000'000));
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ForkedRanks ranks(2, [rounds, seed](const ForkedRanks::Child& child) {
    alarm(600);
    auto transport = child.MakeTransport();
    const int peer = 1 - child.rank;
    auto link = *transport->Connect({.group = 1, .epoch = 1, .peer_world_rank = peer, .lane = 0});
    child.shared.words[0].fetch_add(1);
    ASSERT_TRUE(testing::WaitFor([&] { return child.shared.words[0].load() == 2; }));
    runtime::Sleeper sleeper(&child.segment);
    std::mt19937_64 random(seed + static_cast<uint64_t>(child.rank));
    for (uint64_t round = 0; round < rounds; ++round) {
      uint64_t got = 0;
      SendOperation send = testing::SendOf(reinterpret_cast<std::byte*>(&round), 8);
      RecvOperation recv = testing::RecvOf(reinterpret_cast<std::byte*>(&got), 8);
      if (child.rank == 0) {
        ASSERT_EQ(link->TrySend(send), Progress::kDone);
      }
      while (link->TryRecv(recv) != Progress::kDone) {
        const uint32_t token = sleeper.Announce();
        const Progress progress = link->TryRecv(recv);
        if (progress != Progress::kDone) {
          const auto deadline = runtime::Deadline::After(kLongestSleep);
          sleeper.Sleep(token, {}, deadline);
          ASSERT_FALSE(deadline.passed()) << "rank " << child.rank << " was not woken in round " << round;
        }
        sleeper.Withdraw();
        if (progress == Progress::kDone) break;
      }
      ASSERT_EQ(got, round);
      // Answers come when the other is anywhere between its look and its sleep.
      for (volatile uint64_t left = random() % 1'000; left > 0;) left = left - 1;
      if (child.rank == 1) {
        ASSERT_EQ(link->TrySend(send), Progress::kDone);
      }
    }
  });
  ranks.ExpectAllSucceed();
}

}  // namespace
}  // namespace cohort::comm
