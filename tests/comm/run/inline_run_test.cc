// Calls that run in the caller's thread, and calls that begin so and go on as operations at every step where that may
// happen: both give what operations give, in any interleaving of the ranks. One thread is all ranks.
#include "cohort/comm/run/inline_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/run/bound_plan.h"
#include "cohort/comm/run/early_receives.h"
#include "cohort/comm/run/runner.h"
#include "cohort/comm/transport/shm/layout.h"
#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm {
namespace {

using testing::LocalWorld;

runtime::CallRecord CallOf(uint64_t signature) {
  runtime::CallRecord call;
  call.wire_signature = signature;
  return call;
}

// A link whose short stream is full now and then.
class FullLink final : public Link, public ShortSender {
 public:
  FullLink(std::unique_ptr<Link> link, uint64_t seed) : link_(std::move(link)), random_(seed) {}
  Progress TrySend(SendOperation& operation) override { return link_->TrySend(operation); }
  Progress TryRecv(RecvOperation& operation) override { return link_->TryRecv(operation); }
  ShortSender* short_sender() override { return this; }
  ShortReceiver* short_receiver() override { return link_->short_receiver(); }
  size_t most_bytes() const override { return link_->short_sender()->most_bytes(); }
  bool Send(const std::byte* data, size_t bytes, const runtime::CallRecord& call) override {
    return random_() % 8 != 0 && link_->short_sender()->Send(data, bytes, call);
  }
  void Wake() override { link_->short_sender()->Wake(); }

 private:
  const std::unique_ptr<Link> link_;
  std::mt19937_64 random_;
};

// With a fan-out; or without, over links that are full now and then.
class WorldLinks final : public LinkSource {
 public:
  WorldLinks(LocalWorld& world, int rank, int size, uint64_t group, bool fanout)
      : world_(world), rank_(rank), size_(size), group_(group), fanout_(fanout) {}
  absl::StatusOr<std::unique_ptr<Link>> MakeLink(int peer, uint16_t lane) override {
    auto link = world_.Connect(rank_, peer, group_, lane);
    if (fanout_) return link;
    return std::make_unique<FullLink>(std::move(link), group_ * 64 + static_cast<uint64_t>(rank_ * 8 + peer));
  }
  absl::StatusOr<std::unique_ptr<Fanout>> MakeFanout(uint16_t) override {
    if (!fanout_) return nullptr;
    return world_.ConnectFanout(rank_, size_, group_);
  }

 private:
  LocalWorld& world_;
  const int rank_;
  const int size_;
  const uint64_t group_;
  const bool fanout_;
};

// A rank of one algorithm's calls.
class Rank {
 public:
  Rank(LocalWorld& world, const AlgorithmInfo& algorithm, int rank, int size, uint64_t group, int64_t count,
       bool fanout)
      : links_(world, rank, size, group, fanout), runner_(&links_, rank, size) {
    PlanRequest request{.kind = algorithm.kind, .size = size, .rank = rank, .pieces = PartsOf(algorithm, size)};
    if (HasRoot(algorithm.kind)) request.root = size - 1;
    const absl::StatusOr<Plan> plan = BuildPlan(algorithm, request);
    EXPECT_TRUE(plan.ok()) << plan.status();
    Plan marked = *plan;
    MarkEarlyReceives(&marked);
    plan_ = std::make_shared<const Plan>(std::move(marked));
    const auto elements = [&](BufferId buffer) {
      return static_cast<size_t>(ChunksOf(buffer, request) / plan_->pieces * count);
    };
    in_.resize(elements(BufferId::kIn));
    out_.resize(elements(BufferId::kOut));
    for (size_t i = 0; i < in_.size(); ++i) in_[i] = static_cast<int32_t>(1000 * rank + 7 * i);
    binding_.in = in_.data();
    binding_.out = out_.data();
    binding_.count = static_cast<size_t>(count);
    binding_.element_bytes = sizeof(int32_t);
    binding_.dtype = DataType::kInt32;
    binding_.kernel = FindReduceKernel(DataType::kInt32, ReduceOp::kSum);
  }

  void Reset(uint64_t signature) {
    binding_.signature = signature;
    std::fill(out_.begin(), out_.end(), -1);
  }
  // As an operation, from the step where the inline run stopped.
  bool Start() {
    if (!begun_) return runner_.Start(plan_, binding_);
    runner_.Start(*bound_);
    return true;
  }
  bool AdvanceToEnd() {
    const Progress progress = runner_.Advance();
    EXPECT_NE(progress, Progress::kFailed) << runner_.failure().status;
    return progress == Progress::kDone || progress == Progress::kFailed;
  }
  bool BindInline() {
    bound_ = runner_.Bind(plan_, binding_);
    if (bound_ == nullptr) return false;
    run_ = InlineRun::Of(bound_.get(), 1, [this](int peer) { return runner_.LinkTo(peer); });
    return run_ != nullptr;
  }
  void Begin() {
    begun_ = true;
    call_ = CallOf(binding_.signature);
    run_->Begin(in_.data(), out_.data(), call_);
  }
  bool Run() { return run_->Run(0); }
  // The step where it stopped.
  size_t at() { return static_cast<size_t>(bound_->lane(0).next - bound_->lane(0).steps.data()); }
  const std::vector<int32_t>& out() const { return out_; }
  const Plan& plan() const { return *plan_; }

 private:
  WorldLinks links_;
  PlanRunner runner_;
  std::shared_ptr<const Plan> plan_;
  PlanBinding binding_;
  std::vector<int32_t> in_, out_;
  std::shared_ptr<BoundPlan> bound_;
  std::unique_ptr<InlineRun> run_;
  runtime::CallRecord call_;
  bool begun_ = false;
};

struct Seen {
  int at_once = 0;
  std::set<size_t> stopped_at;
};

// One call of all ranks in a random order of their actions.
void RunMixed(std::vector<std::unique_ptr<Rank>>& ranks, std::mt19937_64& random, Seen* seen) {
  enum class Stage { kNew, kBegun, kOperation, kDone };
  std::vector<Stage> stages(ranks.size(), Stage::kNew);
  for (size_t left = ranks.size(), actions = 0; left > 0; ++actions) {
    ASSERT_LT(actions, 100'000u) << "no progress";
    const size_t i = random() % ranks.size();
    Rank& rank = *ranks[i];
    switch (stages[i]) {
      case Stage::kNew:
        rank.Begin();
        stages[i] = Stage::kBegun;
        break;
      case Stage::kBegun:
        if (rank.Run()) {
          ++seen->at_once;
          stages[i] = Stage::kDone;
          --left;
        } else {
          seen->stopped_at.insert(rank.at());
          ASSERT_TRUE(rank.Start());
          stages[i] = Stage::kOperation;
        }
        break;
      case Stage::kOperation:
        if (rank.AdvanceToEnd()) {
          stages[i] = Stage::kDone;
          --left;
        }
        break;
      case Stage::kDone:
        break;
    }
  }
}

class InlineRunTest : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(InlineRunTest, InlineRunsEqualOperations) {
  const auto [size, fanout] = GetParam();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  LocalWorld world(size);
  uint64_t group = 0;
  uint64_t signature = 1;
  std::set<CollectiveKind> kinds;
  int at_once = 0;  // where a step waits for an answer of the same call, one thread never gets to the end at once
  for (const AlgorithmInfo& algorithm : Algorithms()) {
    if (algorithm.traits.single_copy || !CheckRequirements(algorithm, size).ok() ||
        EqualBlocksForm(algorithm.kind) != algorithm.kind || algorithm.kind > CollectiveKind::kBarrier) {
      continue;
    }
    for (const int64_t count : {0, 2, 24, 100, 257}) {  // nothing; in the line, behind it, in the ring
      SCOPED_TRACE(std::string(Name(algorithm.kind)) + " " + std::string(algorithm.name) + " of " +
                   std::to_string(count));
      ++group;
      std::vector<std::unique_ptr<Rank>> ranks;
      for (int rank = 0; rank < size; ++rank) {
        ranks.push_back(std::make_unique<Rank>(world, algorithm, rank, size, group, count, fanout));
      }
      // Operations give the expected results, and make the links.
      ++signature;
      std::vector<std::function<Progress()>> attempts;
      for (auto& rank : ranks) {
        rank->Reset(signature);
        ASSERT_TRUE(rank->Start());
        attempts.emplace_back([&rank] { return rank->AdvanceToEnd() ? Progress::kDone : Progress::kMoved; });
      }
      ASSERT_TRUE(testing::DriveAll(attempts));
      std::vector<std::vector<int32_t>> expected;
      for (auto& rank : ranks) expected.push_back(rank->out());

      bool all_inline = true;
      for (auto& rank : ranks) all_inline = rank->BindInline() && all_inline;
      if (!all_inline) {
        const Plan& plan = ranks[0]->plan();
        const bool long_messages = count * size * int64_t{sizeof(int32_t)} > int64_t{shm::kPartBytes};
        const size_t parts = fanout ? 1 : static_cast<size_t>(size) - 1;  // of a publish
        EXPECT_TRUE(plan.lanes.size() > 1 || plan.lanes[0].steps.size() * parts > 64 || long_messages);
        continue;
      }
      kinds.insert(algorithm.kind);
      Seen seen;
      for (int call = 0; call < 60; ++call) {
        ++signature;
        for (auto& rank : ranks) rank->Reset(signature);
        RunMixed(ranks, random, &seen);
        if (HasFatalFailure()) return;
        for (size_t i = 0; i < ranks.size(); ++i) ASSERT_EQ(ranks[i]->out(), expected[i]) << "rank " << i;
      }
      EXPECT_FALSE(seen.stopped_at.empty());
      at_once += seen.at_once;
    }
  }
  EXPECT_GT(at_once, 100);
  EXPECT_EQ(kinds.size(), 9u);  // the eight operations and barrier
}

INSTANTIATE_TEST_SUITE_P(Ranks, InlineRunTest, ::testing::Combine(::testing::Values(2, 3, 4, 5, 8), ::testing::Bool()));

// A message of another call is left for the operation, which says what differs.
TEST(ShortMessageTest, AMismatchIsLeftToTheOperation) {
  LocalWorld world(2);
  auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  int32_t data[2] = {1, 2};
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::array<std::byte, 64> to{};
  RecvOperation first = testing::RecvOf(to.data(), 8, 1);
  EXPECT_EQ(b->TryRecv(first), Progress::kBlocked);  // attaches
  ASSERT_TRUE(a->short_sender()->Send(bytes, 8, CallOf(1)));
  EXPECT_EQ(b->TryRecv(first), Progress::kDone);

  ASSERT_TRUE(a->short_sender()->Send(bytes, 8, CallOf(2)));
  const ShortReceive other{.data = to.data(), .bytes = 8, .signature = 3};
  EXPECT_FALSE(b->short_receiver()->Receive(other));
  const ShortReceive longer{.data = to.data(), .bytes = 16, .signature = 2};
  EXPECT_FALSE(b->short_receiver()->Receive(longer));
  RecvOperation operation = testing::RecvOf(to.data(), 8, 3);
  EXPECT_EQ(b->TryRecv(operation), Progress::kFailed);
  EXPECT_TRUE(operation.mismatch);
  EXPECT_EQ(operation.peer_signature, 2u);
}

// A short message never overtakes an operation of its stream.
TEST(ShortMessageTest, ShortMessagesWaitForEarlierOperations) {
  LocalWorld world(2);
  auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  const std::vector<std::byte> data = testing::Pattern(100'000, 1);
  std::vector<std::byte> large(data.size());
  std::array<std::byte, 8> small{};
  SendOperation send = testing::SendOf(data.data(), data.size(), 1);
  RecvOperation recv = testing::RecvOf(large.data(), large.size(), 1);
  EXPECT_EQ(b->TryRecv(recv), Progress::kBlocked);
  EXPECT_FALSE(b->short_receiver()->Receive({.data = small.data(), .bytes = 8, .signature = 2}));
  while (a->TrySend(send) == Progress::kMoved && send.moved > 0 && send.moved < data.size()) {
    EXPECT_FALSE(a->short_sender()->Send(data.data(), 8, CallOf(2)));
  }
  ASSERT_TRUE(testing::DriveAll({[&] { return a->TrySend(send); }, [&] { return b->TryRecv(recv); }}));
  EXPECT_EQ(large, data);
  EXPECT_TRUE(a->short_sender()->Send(data.data(), 8, CallOf(2)));
  EXPECT_TRUE(b->short_receiver()->Receive({.data = small.data(), .bytes = 8, .signature = 2}));
  EXPECT_EQ(std::memcmp(small.data(), data.data(), 8), 0);
}

// A link of streams that the test makes.
class FakeLink final : public Link {
 public:
  FakeLink(ShortSender* sender, ShortReceiver* receiver) : sender_(sender), receiver_(receiver) {}
  Progress TrySend(SendOperation&) override { return Progress::kBlocked; }
  Progress TryRecv(RecvOperation&) override { return Progress::kBlocked; }
  ShortSender* short_sender() override { return sender_; }
  ShortReceiver* short_receiver() override { return receiver_; }

 private:
  ShortSender* const sender_;
  ShortReceiver* const receiver_;
};

// A plan of one message each way, of those that have a stream, with its inline run.
struct OneMessage {
  OneMessage(ShortSender* sender, ShortReceiver* receiver, size_t bytes) : link(sender, receiver) {
    Plan plan;
    plan.size = 2;
    std::vector<Step>& steps = plan.lanes.emplace_back().steps;
    if (sender != nullptr) steps.push_back({.kind = StepKind::kSend, .peer = 1, .src = {BufferId::kIn, 0, 1}});
    if (receiver != nullptr) steps.push_back({.kind = StepKind::kRecv, .peer = 1, .dst = {BufferId::kOut, 0, 1}});
    PlanBinding binding;
    binding.count = bytes;
    Fanout* const no_fanout = nullptr;
    EXPECT_TRUE(bound.Bind(std::make_shared<const Plan>(std::move(plan)), binding, {&no_fanout, 1}).ok());
    run = InlineRun::Of(&bound, 1, [this](int) { return &link; });
  }
  FakeLink link;
  BoundPlan bound;
  std::unique_ptr<InlineRun> run;
};

// Notes what it is told to prepare.
class NotedSender final : public ShortSender {
 public:
  bool Send(const std::byte*, size_t, const runtime::CallRecord&) override { return true; }
  void Wake() override {}
  void Prepare(size_t bytes) override { prepared.push_back(bytes); }
  std::vector<size_t> prepared;
};

class PromptReceiver final : public ShortReceiver {
 public:
  bool Receive(const ShortReceive&) override { return true; }
};

// That of a long one is fetched only where nothing is received.
TEST(InlineRunPrepareTest, FetchesTheRoomOfTheNextMessageWhenTheCallIsDone) {
  for (const bool receives : {false, true}) {
    for (const size_t bytes : {size_t{8}, size_t{512}, size_t{1024}}) {
      NotedSender sender;
      PromptReceiver receiver;
      OneMessage message(&sender, receives ? &receiver : nullptr, bytes);
      std::array<std::byte, 1024> data{};
      const runtime::CallRecord record = CallOf(1);
      message.run->Begin(data.data(), data.data(), record);
      EXPECT_TRUE(sender.prepared.empty());
      ASSERT_TRUE(message.run->Run(1));
      const bool expected = !receives || bytes <= 512;
      EXPECT_EQ(sender.prepared, expected ? std::vector<size_t>{bytes} : std::vector<size_t>{})
          << bytes << (receives ? " received as well" : "");
    }
  }
}

// Longer messages are sent whole, copied, unless they lie in the segment: those take an operation, and the receiver
// says so.
TEST(ShortMessageTest, LongMessagesTakeAnOperationWhereTheReaderCopies) {
  LocalWorld world(2);
  auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  ASSERT_EQ(a->short_sender()->most_bytes(), shm::kPartBytes);
  const std::vector<std::byte> data = testing::Pattern(shm::kPartBytes + 1, 1);
  std::vector<std::byte> to(data.size());
  RecvOperation first = testing::RecvOf(to.data(), 8, 1);
  EXPECT_EQ(b->TryRecv(first), Progress::kBlocked);  // attaches
  ASSERT_TRUE(a->short_sender()->Send(data.data(), 8, CallOf(1)));
  ASSERT_EQ(b->TryRecv(first), Progress::kDone);
  EXPECT_FALSE(b->short_receiver()->TakesOperation());

  for (int i = 0; i < 50; ++i) {  // the ring goes round
    const size_t bytes = i % 2 == 0 ? 4096 : 5999;
    std::fill(to.begin(), to.end(), std::byte{});
    ASSERT_TRUE(a->short_sender()->Send(data.data(), bytes, CallOf(2))) << i;
    ASSERT_TRUE(b->short_receiver()->Receive({.data = to.data(), .bytes = bytes, .signature = 2})) << i;
    ASSERT_TRUE(std::equal(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(bytes), to.begin()));
    ASSERT_EQ(to[bytes], std::byte{});
  }
  EXPECT_FALSE(a->short_sender()->Send(data.data(), data.size(), CallOf(3)));
  EXPECT_TRUE(a->short_sender()->TakesOperation());

  auto block = world.segment(0).Allocate(4096);
  ASSERT_TRUE(block.ok()) << block.status();
  const auto* shared = static_cast<const std::byte*>(*world.segment(0).Map(*block));
  EXPECT_FALSE(a->short_sender()->Send(shared, 4096, CallOf(4)));
  EXPECT_TRUE(a->short_sender()->TakesOperation());
  SendOperation send = testing::SendOf(shared, 4096, 4);
  ASSERT_EQ(a->TrySend(send), Progress::kMoved);
  EXPECT_FALSE(b->short_receiver()->Receive({.data = to.data(), .bytes = 4096, .signature = 4}));
  EXPECT_TRUE(b->short_receiver()->TakesOperation());
  RecvOperation recv = testing::RecvOf(to.data(), 4096, 4);
  EXPECT_EQ(b->TryRecv(recv), Progress::kDone);
  EXPECT_EQ(a->TrySend(send), Progress::kDone);
  EXPECT_FALSE(b->short_receiver()->Receive({.data = to.data(), .bytes = 4096, .signature = 5}));
  EXPECT_FALSE(b->short_receiver()->TakesOperation());  // nothing is there
  int sent = 0;
  while (a->short_sender()->Send(data.data(), 4096, CallOf(5))) ASSERT_LT(++sent, 100);
  EXPECT_FALSE(a->short_sender()->TakesOperation());  // no room as yet
}

// A sender and a receiver that do nothing, for a reason that lasts or not.
class RefusingSender final : public ShortSender {
 public:
  explicit RefusingSender(bool takes_operation) : takes_operation_(takes_operation) {}
  size_t most_bytes() const override { return 4096; }
  bool Send(const std::byte*, size_t, const runtime::CallRecord&) override { return false; }
  bool TakesOperation() const override { return takes_operation_; }
  void Wake() override {}

 private:
  const bool takes_operation_;
};
class RefusingReceiver final : public ShortReceiver {
 public:
  explicit RefusingReceiver(bool takes_operation) : takes_operation_(takes_operation) {}
  size_t most_bytes() const override { return 4096; }
  bool Receive(const ShortReceive&) override { return ++looks, false; }
  bool TakesOperation() const override { return takes_operation_; }
  int looks = 0;

 private:
  const bool takes_operation_;
};

TEST(InlineRunStopTest, LongMessagesSayWhyTheyStopped) {
  std::vector<std::byte> data(4096);
  const runtime::CallRecord record = CallOf(1);
  for (const bool takes_operation : {false, true}) {
    RefusingSender sender(takes_operation);
    OneMessage sends(&sender, nullptr, 4096);
    sends.run->Begin(data.data(), data.data(), record);
    EXPECT_FALSE(sends.run->Run(10));
    EXPECT_EQ(sends.run->takes_operation(), takes_operation);

    RefusingReceiver receiver(takes_operation);
    OneMessage receives(nullptr, &receiver, 4096);
    receives.run->Begin(data.data(), data.data(), record);
    EXPECT_FALSE(receives.run->Run(10));
    EXPECT_EQ(receives.run->takes_operation(), takes_operation);
    EXPECT_EQ(receiver.looks, takes_operation ? 1 : 11);  // it does not wait for what never comes
    EXPECT_EQ(receives.run->calls_done(), 0u);
  }
}

// A sender that is never confirmed stops when its slots are used, and goes on when they are read.
TEST(ShortMessageTest, ShortMessagesStopWhenTheStreamIsFull) {
  LocalWorld world(2);
  auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  int sent = 0;
  uint64_t value = 0;
  while (a->short_sender()->Send(reinterpret_cast<const std::byte*>(&(++value)), 8, CallOf(1))) ASSERT_LT(++sent, 1000);
  EXPECT_GE(sent, 8);
  uint64_t received = 0;
  RecvOperation first = testing::RecvOf(reinterpret_cast<std::byte*>(&received), 8, 1);
  ASSERT_EQ(b->TryRecv(first), Progress::kDone);
  EXPECT_EQ(received, 1u);
  for (int i = 1; i < sent; ++i) {
    ASSERT_TRUE(
        b->short_receiver()->Receive({.data = reinterpret_cast<std::byte*>(&received), .bytes = 8, .signature = 1}));
    EXPECT_EQ(received, static_cast<uint64_t>(i) + 1);
  }
  EXPECT_TRUE(a->short_sender()->Send(reinterpret_cast<const std::byte*>(&value), 8, CallOf(1)));
}

}  // namespace
}  // namespace cohort::comm
