#include "cohort/launcher/verdict/open_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/launcher/verdict/verdict.h"
#include "cohort/launcher/verdict/verdict_words.h"
#include "tests/launcher/verdict/milliseconds.h"
#include "tests/launcher/verdict/world.h"

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(OpenWaitsTest, NamesTheRankThatIsWaitedForAtTheEnd) {
  World world(4, 2);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (int step = 0; step < 10; ++step) {
      world.Compute(rank, 10 * kMs);
      world.AllReduce(rank, World::All(4), 1);
    }
  }
  // Rank 1 waits for rank 0, which waits for rank 3, as rank 2 does.
  world.Compute(3, 20'000 * kMs, Activity::kLocks, "futex");
  world.Receive(0, 3, 2);
  world.Receive(1, 0, 3);
  world.AllReduce(2, World::All(4), 1);
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run(10'000 * kMs));
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(3u));
  EXPECT_THAT(verdict->culprit->waiting, ElementsAre(0u, 1u, 2u));
  EXPECT_EQ(verdict->culprit->reason.activity, Activity::kLocks);
  EXPECT_EQ(verdict->culprit->reason.object, "futex");
  EXPECT_GT(verdict->culprit->waited_ns, 9'000 * kMs);
}

TEST(OpenWaitsTest, ACallThatEndedSinceHidesNoWait) {
  World world(3);
  for (const uint32_t rank : {0u, 1u}) world.AllReduce(rank, {0, 1}, 1);
  world.StartAllReduce(0, {0, 1}, 1);
  world.AllReduce(0, {0, 2}, 2);
  world.Wait(0);
  world.AllReduce(2, {0, 2}, 2);
  world.Compute(1, 20'000 * kMs, Activity::kReads);
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run(10'000 * kMs));
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(1u));
  EXPECT_THAT(verdict->culprit->waiting, ElementsAre(0u));
}

TEST(OpenWaitsTest, ARankThatDoesSomethingBesideACallDoesNotWait) {
  World world(3);
  for (const uint32_t rank : {0u, 1u}) world.AllReduce(rank, {0, 1}, 1);
  for (const uint32_t rank : {0u, 2u}) world.AllReduce(rank, {0, 2}, 2);
  world.StartAllReduce(0, {0, 1}, 1);
  world.Compute(0, 20'000 * kMs, Activity::kReads);
  world.AllReduce(2, {0, 2}, 2);
  world.Compute(1, 20'000 * kMs);
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run(10'000 * kMs));
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(0u));
  EXPECT_THAT(verdict->culprit->waiting, ElementsAre(2u));
  EXPECT_EQ(verdict->culprit->reason.activity, Activity::kReads);
}

TEST(OpenWaitsTest, RanksThatWaitForAnotherOneAreNotNamed) {
  World world(5);
  for (uint32_t rank = 0; rank < 5; ++rank) {
    const std::vector<uint32_t> group = rank < 3 ? std::vector<uint32_t>{0, 1, 2} : std::vector<uint32_t>{3, 4};
    world.AllReduce(rank, group, 1);
    if (rank == 2 || rank == 4) {
      world.Compute(rank, 20'000 * kMs);
    } else {
      world.AllReduce(rank, group, 1);
    }
  }
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run(10'000 * kMs));
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(2u));
  EXPECT_THAT(verdict->culprit->waiting, ElementsAre(0u, 1u));
}

TEST(OpenWaitsTest, NamesARankThatNeverCalled) {
  World world(3);
  world.AllReduce(0, World::All(3), 1);
  world.AllReduce(1, World::All(3), 1);
  world.Compute(2, 8'000 * kMs, Activity::kReads, "read of /data/x");
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run(5'000 * kMs));
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(2u));
  EXPECT_EQ(verdict->culprit->reason.object, "read of /data/x");
}

// Ranks 0 to `callers` - 1 of four call, and wait.
History WithoutSome(uint32_t callers) {
  World world(4, 2);
  for (uint32_t rank = 0; rank < callers; ++rank) world.AllReduce(rank, World::All(4), 1);
  return world.Run(12'000 * kMs);
}

TEST(OpenWaitsTest, ARankThatHasNotJoinedIsNamedAndNothingElse) {
  History history = WithoutSome(3);
  history.unjoined = {{.rank = 3, .node = "node1", .pid = 4711, .doing = {"python3 sleeps in futex"}}};
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(3u));
  EXPECT_THAT(verdict->culprit->nodes, ElementsAre("node1"));
  EXPECT_FALSE(verdict->culprit->in_call);
  EXPECT_THAT(verdict->culprit->waiting, ElementsAre(0u, 1u, 2u));
  EXPECT_THAT(VerdictLines(*verdict),
              ElementsAre("rank 3 has not joined the job yet: its process has not come to Runtime::Init "
                          "(dlaunch.init() in Python)",
                          "  waiting: ranks 0-2, for 12.00 s, in all_reduce(sum, float32, 16) at train.cc:1",
                          "  rank 3 (node1, pid 4711):", "    python3 sleeps in futex"));
}

TEST(OpenWaitsTest, ARankThatHasNotJoinedIsNamedBeforeOneThatIsLateToo) {
  World world(4, 2);
  for (const uint32_t rank : {0u, 1u}) world.AllReduce(rank, World::All(4), 1);
  world.Compute(2, 20'000 * kMs);
  History history = world.Run(12'000 * kMs);
  history.unjoined = {{.rank = 3, .node = "node1", .pid = 4711}};
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  ASSERT_TRUE(verdict->culprit.has_value());
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(3u));
  EXPECT_THAT(verdict->culprit->unjoined, SizeIs(1));
}

TEST(OpenWaitsTest, ARankThatHasNotJoinedIsNamedWhereNobodyHasCalled) {
  History history;
  history.unjoined = {{.rank = 1, .node = "node0", .pid = 1}, {.rank = 3, .node = "node1", .pid = 2}};
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  EXPECT_THAT(VerdictLines(*verdict)[0], StartsWith("ranks 1,3 have not joined the job yet: their processes have not"));
  EXPECT_FALSE(FindVerdict(history, 1).ok());
}

TEST(OpenWaitsTest, ARankThatHasNotJoinedIsNotNamedWhereNobodyWaitsForIt) {
  World world(4, 2);
  for (const uint32_t rank : {0u, 1u, 2u}) world.AllReduce(rank, {0, 1, 2}, 1);
  for (const uint32_t rank : {0u, 1u}) world.AllReduce(rank, {0, 1, 2}, 1);
  world.Compute(2, 20'000 * kMs);
  History history = world.Run(12'000 * kMs);
  history.unjoined = {{.rank = 3, .node = "node1", .pid = 4711}};
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  ASSERT_TRUE(verdict->culprit.has_value());
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(2u));
  EXPECT_THAT(verdict->culprit->unjoined, IsEmpty());
}

// A trace has nothing of ranks that have not joined.
TEST(OpenWaitsTest, ACallThatLacksRanksOfWhichNothingIsKnownBlamesNobodyElse) {
  const absl::StatusOr<Verdict> verdict = FindVerdict(WithoutSome(2));
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, IsEmpty());
  EXPECT_THAT(verdict->culprit->nodes, IsEmpty());
  EXPECT_THAT(VerdictLines(*verdict),
              ElementsAre("2 of the 4 ranks of all_reduce(sum, float32, 16) at train.cc:1 have made no call that is "
                          "known: not joined yet, or their calls are missing",
                          "  waiting: ranks 0,1, for 12.00 s, in all_reduce(sum, float32, 16) at train.cc:1"));
}

// Four ranks have joined and could be the whole of the group, but four others have not joined.
TEST(OpenWaitsTest, ASubgroupOfAWorldThatHasNotAllJoinedBlamesNoRankThatMayBeOutsideOfIt) {
  World world(8, 4);
  for (const uint32_t rank : {0u, 1u}) world.AllReduce(rank, {0, 1, 4, 5}, 1);
  for (const uint32_t rank : {2u, 3u}) world.Compute(rank, 20'000 * kMs);
  History history = world.Run(12'000 * kMs);
  for (uint32_t rank = 4; rank < 8; ++rank) {
    history.unjoined.push_back({.rank = rank, .node = "node1", .pid = 4700 + rank, .doing = {"sh sleeps in wait4"}});
  }
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, IsEmpty());
  EXPECT_EQ(verdict->culprit->unseen, 2u);
  EXPECT_THAT(verdict->culprit->unjoined, SizeIs(4));
  EXPECT_LT(verdict->culprit->sure, 0.9);
  const std::vector<std::string> lines = VerdictLines(*verdict);
  ASSERT_THAT(lines, SizeIs(11));
  EXPECT_EQ(lines[0],
            "2 of the 4 ranks of all_reduce(sum, float32, 16) at train.cc:1 have made no known call of its group in "
            "this time");
  EXPECT_EQ(lines[1], "  waiting: ranks 0,1, for 12.00 s, in all_reduce(sum, float32, 16) at train.cc:1");
  EXPECT_EQ(lines[2], "  ranks 4-7 have not joined the job yet and may be missing there");
  EXPECT_EQ(lines[3], "  rank 4 (node1, pid 4704):");
}

TEST(OpenWaitsTest, AMemberThatIsLateForItsFirstCallOfASubgroupIsNotSaidToHaveMadeNoCall) {
  World world(4, 2);
  for (uint32_t rank = 0; rank < 4; ++rank) world.AllReduce(rank, World::All(4), 1);
  world.AllReduce(0, {0, 1}, 2);
  world.Compute(1, 20'000 * kMs);
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run(12'000 * kMs));
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, IsEmpty());
  EXPECT_LT(verdict->culprit->sure, 0.9);
  EXPECT_THAT(VerdictLines(*verdict),
              ElementsAre("1 of the 2 ranks of all_reduce(sum, float32, 16) at train.cc:2 has made no known call of "
                          "its group in this time",
                          "  waiting: rank 0, for 12.00 s, in all_reduce(sum, float32, 16) at train.cc:2"));
}

TEST(OpenWaitsTest, RanksThatWaitInAnotherSubgroupAreNotSaidToWaitInThisOne) {
  World world(3);
  for (uint32_t rank = 0; rank < 3; ++rank) world.AllReduce(rank, World::All(3), 1);
  world.AllReduce(0, {0, 1}, 2);
  world.AllReduce(1, {1, 2}, 3);
  world.Compute(2, 20'000 * kMs);
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run(12'000 * kMs));
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, IsEmpty());
  EXPECT_THAT(verdict->culprit->waiting, ElementsAre(0u));
}

// A job whose calls were open when it failed.
History Failed(History history) {
  for (TracedCall& call : history.calls) {
    if (call.state == runtime::CallState::kStarted) call.state = runtime::CallState::kFailed;
  }
  return history;
}

TEST(OpenWaitsTest, WaitsInCallsThatHaveFailedAreToldAsPast) {
  History history = Failed(WithoutSome(3));
  absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  EXPECT_TRUE(verdict->until_failure);
  EXPECT_THAT(VerdictLines(*verdict),
              ElementsAre("1 of the 4 ranks of all_reduce(sum, float32, 16) at train.cc:1 had made no call that is "
                          "known: not joined by then, or its calls are missing",
                          "  waited: ranks 0-2, for 12.00 s, in all_reduce(sum, float32, 16) at train.cc:1, until the "
                          "call failed"));
  history.unjoined = {{.rank = 3, .node = "node1", .pid = 4711}};
  verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  EXPECT_THAT(VerdictLines(*verdict)[0], StartsWith("rank 3 has not joined the job yet: "));
  EXPECT_THAT(VerdictLines(*verdict)[1], StartsWith("  waited: ranks 0-2, for 12.00 s, in "));
}

// Three ranks wait for one that sleeps, until their calls fail; then the late one comes, and its call fails at once.
History EndedByDeadline() {
  World world(4, 2);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (int step = 0; step < 10; ++step) {
      world.Compute(rank, 10 * kMs);
      world.AllReduce(rank, World::All(4), 1);
    }
    if (rank == 2) world.Compute(rank, 20'000 * kMs, Activity::kSleeps);
    if (rank != 2) world.AllReduce(rank, World::All(4), 1);
  }
  History history = world.Run(10'000 * kMs);
  std::vector<TracedCall> late;
  for (TracedCall& call : history.calls) {
    if (call.state != runtime::CallState::kStarted) continue;
    call.state = runtime::CallState::kFailed;
    if (!late.empty()) continue;
    late.push_back(call);
    late[0].rank = 2;
    late[0].node = 1;
    late[0].start_ns = late[0].end_ns = call.end_ns + 11'000 * kMs;
  }
  history.calls.insert(history.calls.end(), late.begin(), late.end());
  return history;
}

TEST(OpenWaitsTest, NamesTheRankThatCallsAwaitedUntilTheirDeadline) {
  const absl::StatusOr<Verdict> verdict = FindVerdict(EndedByDeadline());
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kWaitsNow);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(2u));
  EXPECT_THAT(verdict->culprit->waiting, ElementsAre(0u, 1u, 3u));
  EXPECT_EQ(verdict->culprit->reason.activity, Activity::kSleeps);
  EXPECT_GT(verdict->culprit->waited_ns, 9'000 * kMs);
  EXPECT_LT(verdict->culprit->waited_ns, 11'000 * kMs);
}

TEST(OpenWaitsTest, AFailureAfterWhichRanksWentOnIsNotTheEnd) {
  History history = EndedByDeadline();
  const uint64_t later_ns = history.calls.back().end_ns + 1'000 * kMs;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    TracedCall call = history.calls.back();
    call.rank = rank;
    call.node = rank / 2;
    ++call.sequence;
    call.state = runtime::CallState::kDone;
    call.start_ns = later_ns + rank * kMs;
    call.end_ns = later_ns + 10 * kMs;
    history.calls.push_back(call);
  }
  EXPECT_FALSE(UntilFailure(history, 1'000 * kMs).has_value());
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  EXPECT_NE(verdict->kind, Verdict::Kind::kWaitsNow);
}

}  // namespace
}  // namespace cohort::launcher
