#include "cohort/launcher/control/call_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/status/status.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/runtime/segment/call_compare.h"

namespace cohort::launcher {
namespace {

using ::testing::HasSubstr;

InspectedMember Member(uint32_t rank, uint64_t signature, bool done = false) {
  InspectedMember member;
  member.rank = rank;
  member.place = "node0";
  member.answered = true;
  member.call.set_present(true);
  member.call.set_sequence_seen(true);
  member.call.set_group(1);
  member.call.set_epoch(1);
  member.call.set_sequence(5);
  member.call.set_signature(signature);
  member.call.set_call("call" + std::to_string(signature) + "(float32, 8)");
  member.call.set_site("x.cc:" + std::to_string(signature));
  member.call.set_done(done);
  return member;
}

constexpr OperationState kStalled = OperationState::kStalled;
constexpr OperationState kExpired = OperationState::kExpired;

InspectedMember Absent(uint32_t rank) {
  InspectedMember member;
  member.rank = rank;
  member.place = "node0";
  member.answered = true;
  return member;
}

std::string Names(const std::vector<uint32_t>& ranks) {
  return runtime::DescribeRanks(std::vector<int>(ranks.begin(), ranks.end()));
}

InspectedMember WithResult(uint32_t rank, uint32_t result) {
  InspectedMember member = Member(rank, 1, /*done=*/true);
  member.call.set_result(result);
  return member;
}

TEST(CallComparison, TheRankWithAnotherResultIsBlamed) {
  const auto result =
      CompareCalls(1, 1, 5, {WithResult(0, 8), WithResult(1, 9), WithResult(2, 8), Member(3, 1)}, kStalled);
  ASSERT_TRUE(result.verdict.has_value());
  EXPECT_EQ(result.verdict->code, static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_EQ(result.verdict->blamed_rank, 1);
  EXPECT_THAT(result.verdict->text,
              HasSubstr("results differ: rank 1 has another result of call1(float32, 8) at x.cc:1 than ranks 0,2"));
}

TEST(CallComparison, TwoResultsWaitForAThird) {
  const std::vector<InspectedMember> members = {WithResult(0, 8), WithResult(1, 9), WithResult(2, 0)};
  EXPECT_TRUE(CompareCalls(1, 1, 5, members, kStalled).undecided);
  const auto expired = CompareCalls(1, 1, 5, members, kExpired);
  ASSERT_TRUE(expired.verdict.has_value());
  EXPECT_EQ(expired.verdict->blamed_rank, -1);
  EXPECT_TRUE(CompareCalls(1, 1, 5, {WithResult(0, 8), WithResult(1, 9)}, kStalled).verdict.has_value());
}

TEST(CallComparison, TwoRanksThatDifferAreBothNamedAndNeitherBlamed) {
  const auto result = CompareCalls(1, 1, 5, {Member(0, 1), Member(1, 2)}, kStalled);
  ASSERT_TRUE(result.verdict.has_value());
  EXPECT_EQ(result.verdict->blamed_rank, -1);
  EXPECT_THAT(result.verdict->text, HasSubstr("rank 0 called call1(float32, 8) at x.cc:1"));
  EXPECT_THAT(result.verdict->text, HasSubstr("rank 1 called call2(float32, 8) at x.cc:2"));
}

TEST(CallComparison, CallsThatReadTheSameAreReportedToDifferElsewhere) {
  InspectedMember other = Member(1, 1);
  other.call.set_signature(99);
  const auto result = CompareCalls(1, 1, 5, {Member(0, 1), other}, kStalled);
  ASSERT_TRUE(result.verdict.has_value());
  EXPECT_THAT(result.verdict->text, HasSubstr("algorithm or tuning table"));
}

TEST(CallComparison, AMemberThatIsAheadIsNotAbsent) {
  InspectedMember ahead = Member(1, 1);
  ahead.call.set_sequence_seen(false);
  ahead.call.set_sequence(900);
  const auto result = CompareCalls(1, 1, 5, {Member(0, 1), ahead}, kStalled);
  EXPECT_FALSE(result.verdict.has_value());
  EXPECT_FALSE(result.undecided);
}

// An agent that answers late has only the rank's latest call to show: no mismatch, no absence.
TEST(CallComparison, AMemberWhoseBoxHasForgottenTheCallIsNoEvidence) {
  EXPECT_FALSE(CompareCalls(1, 1, 5, {Member(0, 1), Member(1, 1), Member(2, 0)}, kStalled).verdict.has_value());
  EXPECT_FALSE(CompareCalls(1, 1, 5, {Member(0, 1), Member(1, 1), Member(2, 0)}, kStalled).undecided);
  EXPECT_TRUE(CompareCalls(1, 1, 5, {Member(0, 1), Member(1, 1), Member(2, 0)}, kExpired).verdict.has_value());
  const auto expired = CompareCalls(1, 1, 5, {Member(0, 1), Member(1, 1), Member(2, 0)}, kExpired).verdict;
  EXPECT_NE(expired->text.find("whether rank 2 came to it can't be told"), std::string::npos) << expired->text;
  EXPECT_FALSE(
      CompareCalls(1, 1, 5, {Absent(0), Member(1, 0)}, kExpired).verdict.has_value());  // nobody waits any more
  EXPECT_FALSE(CompareCalls(1, 1, 5, {Absent(0), Member(1, 0)}, kStalled).undecided);
  EXPECT_TRUE(CompareCalls(1, 1, 5, {Member(0, 1), Member(1, 2), Member(2, 0)}, kStalled).verdict.has_value());
}

TEST(CallComparison, AMessagesNumberSaysNothingOfCollectives) {
  InspectedMember other = Absent(1);
  other.call.set_present(true);
  other.call.set_group(1);
  other.call.set_epoch(1);
  other.call.set_sequence(900);
  other.call.set_message(true);
  EXPECT_TRUE(CompareCalls(1, 1, 5, {Member(0, 1), other}, kStalled).undecided);
}

TEST(CallComparison, ACallThatEndedJustAfterItsTimeEndsNoGroup) {
  EXPECT_FALSE(CompareCalls(1, 1, 5, {Member(0, 1, true), Member(1, 1, true)}, kExpired).verdict.has_value());
  EXPECT_TRUE(CompareCalls(1, 1, 5, {Member(0, 1, true), Member(1, 1)}, kExpired).verdict.has_value());
}

// Members that gave up are done with the call, and may have ended.
TEST(CallComparison, ARankThatNeverCalledIsNamedAfterATimeoutThoughNobodyWaits) {
  InspectedMember gone = Member(1, 1, true);
  gone.ended = true;
  gone.call.set_failed(true);
  const auto result = CompareCalls(1, 1, 5, {Member(0, 1, true), gone, Absent(2)}, OperationState::kFailed);
  ASSERT_TRUE(result.verdict.has_value());
  EXPECT_EQ(result.verdict->code, 4);
  EXPECT_EQ(result.verdict->blamed_rank, 2);
  EXPECT_THAT(result.verdict->text, HasSubstr("rank 2 never called call1"));
  EXPECT_FALSE(CompareCalls(1, 1, 5, {Member(0, 1, true), gone}, OperationState::kFailed).verdict.has_value());
}

// It may have called, and others wait for it that have not.
TEST(CallComparison, ARankThatADebuggerHasStoppedIsNamedWhenTheTimeIsOver) {
  InspectedMember held = Member(1, 1);
  held.call.set_held_by("gdb, pid 4711");
  for (const OperationState state : {OperationState::kExpired, OperationState::kFailed}) {
    const auto result = CompareCalls(1, 1, 5, {Member(0, 1), held, Absent(2)}, state);
    ASSERT_TRUE(result.verdict.has_value());
    EXPECT_EQ(result.verdict->blamed_rank, 1);
    EXPECT_THAT(result.verdict->text, HasSubstr("rank 1 (node0) did not go on: it is in call1 #5 of group"));
    EXPECT_THAT(result.verdict->text, HasSubstr("stopped by a debugger (gdb, pid 4711)"));
  }
  EXPECT_FALSE(CompareCalls(1, 1, 5, {Member(0, 1), held, Absent(2)}, kStalled).verdict.has_value());
}

TEST(CallComparison, AFinishedRankIsNoReasonToWait) {
  InspectedMember ended = Absent(1);
  ended.ended = true;
  ended.end = "exited with code 0";
  // The members who called are done: the absent one owed them nothing.
  EXPECT_FALSE(CompareCalls(1, 1, 5, {Member(0, 1, true), ended}, kStalled).verdict.has_value());
  EXPECT_TRUE(CompareCalls(1, 1, 5, {Member(0, 1), ended}, kStalled).verdict.has_value());
}

TEST(CallComparison, ARankThatEndsBeforeItsCallIsCompleteIsNamedWhileOthersWait) {
  InspectedMember ended = Member(1, 1);
  ended.ended = true;
  ended.end = "exited with code 0";
  const auto result = CompareCalls(1, 1, 5, {Member(0, 1), ended}, kStalled);
  ASSERT_TRUE(result.verdict.has_value());
  EXPECT_EQ(result.verdict->code, 14);
  EXPECT_EQ(result.verdict->blamed_rank, 1);
  EXPECT_THAT(result.verdict->text, HasSubstr("rank 1 (node0) exited with code 0 before the call was complete"));
  EXPECT_FALSE(CompareCalls(1, 1, 5, {Member(0, 1, true), ended}, kStalled).verdict.has_value());  // nobody waits
  ended.call.set_done(true);
  EXPECT_FALSE(CompareCalls(1, 1, 5, {Member(0, 1), ended}, kStalled).verdict.has_value());  // its part is over
  ended.call.set_failed(true);
  EXPECT_TRUE(CompareCalls(1, 1, 5, {Member(0, 1), ended}, kStalled).verdict.has_value());
}

TEST(CallComparison, AnExpiredOperationWithoutAnyRecordGetsAnAnswer) {
  const auto result = CompareCalls(1, 1, 5, {Absent(0), Absent(1)}, kExpired);
  ASSERT_TRUE(result.verdict.has_value());
  EXPECT_THAT(result.verdict->text, HasSubstr("operation #5"));
}

// Whatever the members say: different signatures are always a mismatch that names everyone who called, equal ones
// never; an expired operation always gets a verdict.
TEST(CallComparison, ComparisonsHoldForRandomGroups) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 2000; ++trial) {
    const uint32_t size = 1 + random() % 12;
    std::vector<InspectedMember> members;
    std::vector<uint32_t> with[2];
    uint32_t absent = 0;
    bool waiting = false;
    for (uint32_t rank = 0; rank < size; ++rank) {
      const uint32_t what = random() % 8;
      if (what == 0) {
        members.push_back(Absent(rank));
        members.back().answered = random() % 2 == 0;
        ++absent;
        continue;
      }
      const bool done = random() % 4 == 0;
      const uint32_t signature = what == 1 ? 1 : 0;
      waiting |= !done;
      with[signature].push_back(rank);
      members.push_back(Member(rank, 10 + signature, done));
    }
    const bool expired = random() % 2 == 0;
    const auto result = CompareCalls(1, 1, 5, members, expired ? kExpired : kStalled);
    if (!with[0].empty() && !with[1].empty()) {
      ASSERT_TRUE(result.verdict.has_value());
      EXPECT_EQ(result.verdict->code, 9);
      EXPECT_THAT(result.verdict->text, HasSubstr(Names(with[0]) + " called call10"));
      EXPECT_THAT(result.verdict->text, HasSubstr(Names(with[1]) + " called call11"));
    } else if (expired && (waiting || (with[0].empty() && with[1].empty()))) {
      ASSERT_TRUE(result.verdict.has_value());
      EXPECT_EQ(result.verdict->code, 4);
    } else {
      EXPECT_FALSE(result.verdict.has_value());
      EXPECT_EQ(result.undecided, absent > 0 && (waiting || (with[0].empty() && with[1].empty())));
    }
  }
}

TEST(Describe, NamesSetsOfRanks) {
  EXPECT_EQ(RankNames({}), "no rank");
  EXPECT_EQ(RankNames({3}), "rank 3");
  EXPECT_EQ(RankNames({4, 3}), "ranks 3 and 4");
  EXPECT_EQ(RankNames({2, 0, 1, 5, 5}), "ranks 0-2 and 5");
  EXPECT_EQ(RankNames({0, 2, 4, 5, 6, 7}), "ranks 0, 2 and 4-7");
  EXPECT_EQ(SignalName(9), "SIGKILL");
  EXPECT_EQ(SignalName(120), "signal 120");
}

}  // namespace
}  // namespace cohort::launcher
