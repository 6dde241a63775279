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

// A link that cannot send now and then.
class FullLink final : public Link {
 public:
  FullLink(std::unique_ptr<Link> link, uint64_t seed) : link_(std::move(link)), random_(seed) {}
  Progress TrySend(SendOperation& operation) override { return link_->TrySend(operation); }
  Progress TryRecv(RecvOperation& operation) override { return link_->TryRecv(operation); }
  Progress TrySendQuietly(SendOperation& operation) override {
    return random_() % 8 == 0 ? Progress::kBlocked : link_->TrySendQuietly(operation);
  }
  void Wake() override { link_->Wake(); }
  InlineTerms inline_terms() const override { return link_->inline_terms(); }

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
    if (IsRooted(algorithm.kind)) request.root = size - 1;
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
  Progress Advance() { return runner_.Advance(); }
  const RunnerFailure& failure() const { return runner_.failure(); }
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

// A link that notes what is asked of it, and gives one answer.
class FakeLink final : public Link {
 public:
  explicit FakeLink(Progress answer) : answer_(answer) {}
  Progress TrySend(SendOperation& operation) override { return sent = &operation, ++tries, answer_; }
  Progress TryRecv(RecvOperation& operation) override { return received = &operation, ++tries, answer_; }
  void Prepare(size_t bytes) override { prepared.push_back(bytes); }
  InlineTerms inline_terms() const override { return {.most_bytes = 4096}; }

  int tries = 0;
  const SendOperation* sent = nullptr;
  const RecvOperation* received = nullptr;
  std::vector<size_t> prepared;

 private:
  const Progress answer_;
};

// A plan of a message, or of one each way, with its inline run.
struct Messages {
  Messages(Progress answer, bool sends, bool receives, size_t bytes) : link(answer) {
    Plan plan;
    plan.size = 2;
    std::vector<Step>& steps = plan.lanes.emplace_back().steps;
    if (sends) steps.push_back({.kind = StepKind::kSend, .peer = 1, .src = {BufferId::kIn, 0, 1}});
    if (receives) steps.push_back({.kind = StepKind::kRecv, .peer = 1, .dst = {BufferId::kOut, 0, 1}});
    PlanBinding binding;
    binding.count = bytes;
    Fanout* const no_fanout = nullptr;
    EXPECT_TRUE(bound.Bind(std::make_shared<const Plan>(std::move(plan)), binding, {&no_fanout, 1}).ok());
    run = InlineRun::Of(&bound, 1, [this](int) { return &link; });
    run->Begin(data.data(), data.data(), record);
  }
  std::vector<std::byte> data = std::vector<std::byte>(4096);
  const runtime::CallRecord record = CallOf(1);
  FakeLink link;
  BoundPlan bound;
  std::unique_ptr<InlineRun> run;
};

// That of a long one is fetched only where nothing is received.
TEST(InlineRunPrepareTest, FetchesTheRoomOfTheNextMessageWhenTheCallIsDone) {
  for (const bool receives : {false, true}) {
    for (const size_t bytes : {size_t{8}, size_t{512}, size_t{1024}}) {
      Messages messages(Progress::kDone, true, receives, bytes);
      EXPECT_TRUE(messages.link.prepared.empty());
      ASSERT_TRUE(messages.run->Run(1));
      const bool expected = !receives || bytes <= 512;
      EXPECT_EQ(messages.link.prepared, expected ? std::vector<size_t>{bytes} : std::vector<size_t>{})
          << bytes << (receives ? " received as well" : "");
    }
  }
}

// The operation goes on with the same message, which the transport may know. One that has failed is not tried again.
TEST(InlineRunStopTest, AnUnfinishedMessageIsLeftToTheOperation) {
  for (const Progress answer : {Progress::kBlocked, Progress::kMoved, Progress::kFailed}) {
    Messages sends(answer, true, false, 64);
    EXPECT_FALSE(sends.run->Run(10));
    EXPECT_EQ(sends.link.tries, 1);
    EXPECT_EQ(sends.link.sent, &sends.bound.begun().send);

    Messages receives(answer, false, true, 64);
    EXPECT_FALSE(receives.run->Run(10));
    EXPECT_EQ(receives.link.tries, answer == Progress::kFailed ? 1 : 11);
    EXPECT_EQ(receives.link.received, &receives.bound.begun().receive);
    for (Messages* messages : {&sends, &receives}) {
      EXPECT_EQ(messages->bound.begun().state,
                answer == Progress::kFailed ? MessageState::kFailed : MessageState::kUnderWay);
      EXPECT_EQ(messages->bound.lane(0).next, messages->bound.lane(0).steps.data());
    }
  }
}

// Both ranks find that the other is in another call, one inline and one as an operation.
TEST(InlineRunStopTest, AMismatchThatWasFoundInlineFailsTheOperation) {
  LocalWorld world(2);
  const AlgorithmInfo* const algorithm = FindAlgorithm(CollectiveKind::kAllReduce, "flat");
  ASSERT_NE(algorithm, nullptr);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<Rank>(world, *algorithm, rank, 2, 1, 2, true));
    ranks.back()->Reset(1);
    ASSERT_TRUE(ranks.back()->Start());
  }
  ASSERT_TRUE(testing::DriveAll({[&] { return ranks[0]->Advance(); }, [&] { return ranks[1]->Advance(); }}));
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(ranks[static_cast<size_t>(rank)]->BindInline());
    ranks[static_cast<size_t>(rank)]->Reset(static_cast<uint64_t>(2 + rank));
    ranks[static_cast<size_t>(rank)]->Begin();
  }
  for (int rank = 0; rank < 2; ++rank) {
    Rank& self = *ranks[static_cast<size_t>(rank)];
    EXPECT_FALSE(self.Run());
    ASSERT_TRUE(self.Start());
    Progress progress = Progress::kMoved;
    for (int i = 0; i < 100'000'000 && progress != Progress::kFailed; ++i) progress = self.Advance();
    ASSERT_EQ(progress, Progress::kFailed);
    EXPECT_EQ(self.failure().cause, RunnerFailure::Cause::kOtherCall);
  }
}

}  // namespace
}  // namespace cohort::comm
