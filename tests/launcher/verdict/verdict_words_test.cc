#include "cohort/launcher/verdict/verdict_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/verdict/milliseconds.h"

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

Verdict SlowStep() {
  Verdict verdict;
  verdict.kind = Verdict::Kind::kSlowStep;
  verdict.ranks = 4;
  verdict.source = Steps::Source::kCalls;
  verdict.steps = 58;
  verdict.usual_ns = 120 * kMs;
  verdict.step = Verdict::StepTime{.number = 37, .ns = 412 * kMs, .rank = 2};
  verdict.slow_steps = 2;
  verdict.slow_lost_ns = 472 * kMs;
  verdict.slow = {*verdict.step, {.number = 12, .ns = 300 * kMs, .rank = std::nullopt}};
  Culprit culprit;
  culprit.ranks = {2};
  culprit.nodes = {"node1"};
  culprit.waiting = {0, 1, 3};
  culprit.lost_ns = 292 * kMs;
  culprit.waited_ns = 290 * kMs;
  culprit.call = "all_reduce(sum, float32, 1024)";
  culprit.site = "train.cc:88";
  culprit.after = "train.cc:80";
  culprit.reason = {.activity = Activity::kReads,
                    .object = "read of /data/shard-17",
                    .place = "/x/train.py:30 in load",
                    .ns = 288e6,
                    .seen = 1,
                    .sure = 0.95};
  culprit.sure = 0.97;
  verdict.culprit = culprit;
  return verdict;
}

TEST(VerdictWordsTest, TellsTheCauseFirst) {
  EXPECT_THAT(
      VerdictLines(SlowStep()),
      ElementsAre("step 37 took 412 ms, usually 120 ms: ranks 0,1,3 waited 290 ms for rank 2 (node1)",
                  "  where: before all_reduce(sum, float32, 1024) at train.cc:88, after train.cc:80",
                  "  meanwhile: it read or waited for input (read of /data/shard-17), at /x/train.py:30 in load",
                  "  sure: 97 % of the rank, 95 % of the reason",
                  "  to do: faster storage, a copy on a local disk, or more workers that read ahead",
                  "58 steps, found by the calls that repeat; 2 slow, by 472 ms together: rank 2 in 37; no rank for "
                  "sure in 12"));
}

TEST(VerdictWordsTest, HasASentenceForEachKind) {
  Verdict verdict = SlowStep();
  verdict.step.reset();
  verdict.kind = Verdict::Kind::kEveryStep;
  EXPECT_THAT(VerdictLines(verdict)[0], "a step takes 120 ms: ranks 0,1,3 wait 290 ms for rank 2 (node1)");
  verdict.kind = Verdict::Kind::kWaitsNow;
  EXPECT_THAT(VerdictLines(verdict)[0], "ranks 0,1,3 have waited 290 ms for rank 2 (node1)");
  verdict.kind = Verdict::Kind::kAllOfIt;
  verdict.length_ns = 2'000 * kMs;
  EXPECT_THAT(VerdictLines(verdict)[0], "ranks 0,1,3 waited 290 ms for rank 2 (node1) in 2.00 s");
  verdict.kind = Verdict::Kind::kNothing;
  verdict.culprit.reset();
  EXPECT_THAT(VerdictLines(verdict)[0], "a step takes 120 ms: no rank stands out");
}

TEST(VerdictWordsTest, SlowStepsAreToldByRank) {
  Verdict verdict = SlowStep();
  verdict.slow_steps = 5;
  verdict.slow = {{.number = 37, .rank = 2}, {.number = 44, .rank = 1}, {.number = 12, .rank = 2}};
  EXPECT_THAT(VerdictLines(verdict).back(),
              HasSubstr("; 5 slow, by 472 ms together: rank 2 in 12, 37; rank 1 in 44, ..."));
  verdict.slow.clear();
  EXPECT_THAT(VerdictLines(verdict).back(), ::testing::EndsWith("; 5 slow, by 472 ms together"));
}

TEST(VerdictWordsTest, ACallMayBeTheCause) {
  Verdict verdict = SlowStep();
  verdict.culprit->ranks.clear();
  verdict.culprit->in_call = true;
  verdict.culprit->nodes = {"node0", "node1"};
  EXPECT_THAT(
      VerdictLines(verdict)[0],
      HasSubstr("all_reduce(sum, float32, 1024) at train.cc:88 itself took 292 ms longer, between node0 and node1"));
}

TEST(VerdictWordsTest, TextOfRanksCannotSteerATerminal) {
  Verdict verdict = SlowStep();
  verdict.culprit->call = "\x1b[2J";
  verdict.culprit->nodes = {"a\nb"};
  verdict.culprit->reason.object = "\x07";
  verdict.culprit->reason.place = "\r";
  for (const std::string& line : VerdictLines(verdict)) {
    EXPECT_THAT(line, Not(::testing::ContainsRegex("[\x01-\x1f]")));
  }
}

TEST(VerdictWordsTest, EachActivityHasWordsAndARemedy) {
  for (size_t i = 0; i < kActivities; ++i) {
    const auto activity = static_cast<Activity>(i);
    EXPECT_FALSE(RemedyFor(activity).empty());
    EXPECT_EQ(ActivityOfName(ActivityName(activity)), activity);
  }
}

TEST(VerdictWordsTest, TimesHaveThreeDigits) {
  EXPECT_EQ(TimeText(85'000), "85 us");
  EXPECT_EQ(TimeText(4'200'000), "4.2 ms");
  EXPECT_EQ(TimeText(412'000'000), "412 ms");
  EXPECT_EQ(TimeText(1'930'000'000), "1.93 s");
  EXPECT_EQ(TimeText(120'000'000'000), "120 s");
}

}  // namespace
}  // namespace cohort::launcher
