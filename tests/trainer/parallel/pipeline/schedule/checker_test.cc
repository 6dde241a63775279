#include "cohort/trainer/parallel/pipeline/schedule/checker.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "cohort/trainer/parallel/pipeline/schedule/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = ActionKind;

Schedule Built(const char* name, ScheduleRequest request) { return *BuildSchedule(name, request); }

std::string WhyWrong(const Schedule& schedule) {
  const auto report = CheckSchedule(schedule);
  return report.ok() ? "right" : std::string(report.status().message());
}

std::vector<Action>& ListOf(Schedule& schedule, int rank) { return schedule.by_rank[static_cast<size_t>(rank)]; }

size_t PlaceOf(Schedule& schedule, int rank, const Action& action) {
  const auto& actions = ListOf(schedule, rank);
  return static_cast<size_t>(std::find(actions.begin(), actions.end(), action) - actions.begin());
}

void Remove(Schedule& schedule, int rank, const Action& action) {
  auto& actions = ListOf(schedule, rank);
  actions.erase(actions.begin() + static_cast<ptrdiff_t>(PlaceOf(schedule, rank, action)));
}

void Swap(Schedule& schedule, int rank, const Action& one, const Action& other) {
  std::swap(ListOf(schedule, rank)[PlaceOf(schedule, rank, one)],
            ListOf(schedule, rank)[PlaceOf(schedule, rank, other)]);
}

void Replace(Schedule& schedule, int rank, const Action& one, const Action& by) {
  ListOf(schedule, rank)[PlaceOf(schedule, rank, one)] = by;
}

struct Broken {
  const char* what;
  const char* schedule;
  std::function<void(Schedule&)> damage;
  const char* rank;    // named in the error
  const char* action;  // likewise
  const char* why;
};

// Each in two ranks, four micro-batches, and as many stages as the schedule has at least.
const std::vector<Broken>& AllBroken() {
  static const auto& broken = *new std::vector<Broken>{
      {"a forward pass is missing", "1f1b", [](Schedule& s) { Remove(s, 1, {Kind::kForward, 1, 2}); }, "rank 1", "1F2",
       "is missing"},
      {"a backward pass is missing", "gpipe", [](Schedule& s) { Remove(s, 0, {Kind::kBackward, 0, 3}); }, "rank 0",
       "0B3", "is missing"},
      {"half a backward pass", "zb_h1", [](Schedule& s) { Remove(s, 1, {Kind::kWeightGradient, 1, 0}); }, "rank 1",
       "1W0", "is missing"},
      {"the other half", "zb_h1", [](Schedule& s) { Remove(s, 0, {Kind::kInputGradient, 0, 1}); }, "rank 0", "0I1",
       "is missing"},
      {"a pass twice", "1f1b", [](Schedule& s) { Replace(s, 0, {Kind::kForward, 0, 3}, {Kind::kForward, 0, 2}); },
       "rank 0", "0F2", "comes again"},
      {"whole and in parts", "zb_h1",
       [](Schedule& s) { ListOf(s, 0).insert(ListOf(s, 0).end() - 2, {Kind::kBackward, 0, 0}); }, "rank 0", "0B0",
       "a part of the same backward pass"},
      {"another rank's stage", "1f1b",
       [](Schedule& s) { Replace(s, 0, {Kind::kForward, 0, 1}, {Kind::kForward, 1, 1}); }, "rank 0", "1F1",
       "stage 1 is on rank 1"},
      {"no such micro-batch", "1f1b",
       [](Schedule& s) { Replace(s, 1, {Kind::kForward, 1, 1}, {Kind::kForward, 1, 4}); }, "rank 1", "1F4",
       "micro-batches 0 to 3"},
      {"no such stage", "1f1b", [](Schedule& s) { Replace(s, 1, {Kind::kForward, 1, 1}, {Kind::kForward, 2, 1}); },
       "rank 1", "2F1", "stages 0 to 1"},
      {"a send is missing", "1f1b", [](Schedule& s) { Remove(s, 0, {Kind::kSendForward, 0, 1}); }, "rank 0", "0SEND_F1",
       "is missing"},
      {"a receive is missing", "1f1b", [](Schedule& s) { Remove(s, 0, {Kind::kRecvBackward, 0, 2}); }, "rank 0",
       "0RECV_B2", "is missing"},
      {"a send out of the pipeline", "1f1b",
       [](Schedule& s) { ListOf(s, 1).insert(ListOf(s, 1).end() - 2, {Kind::kSendForward, 1, 0}); }, "rank 1",
       "1SEND_F0", "there is no stage 2"},
      {"a send to the same rank", "zbv",
       [](Schedule& s) { ListOf(s, 1).insert(ListOf(s, 1).end() - 2, {Kind::kSendForward, 1, 0}); }, "rank 1",
       "1SEND_F0", "stage 2 is on the same rank"},
      {"backward before forward", "gpipe",
       [](Schedule& s) { Swap(s, 1, {Kind::kForward, 1, 3}, {Kind::kBackward, 1, 3}); }, "rank 1", "1B3",
       "comes before 1F3"},
      {"sent before it is made", "1f1b",
       [](Schedule& s) { Swap(s, 0, {Kind::kForward, 0, 0}, {Kind::kSendForward, 0, 0}); }, "rank 0", "0SEND_F0",
       "comes before 0F0"},
      {"used before it is received", "1f1b",
       [](Schedule& s) { Swap(s, 1, {Kind::kForward, 1, 0}, {Kind::kRecvForward, 1, 0}); }, "rank 1", "1F0",
       "comes before 1RECV_F0"},
      {"W before I", "zb_h1",
       [](Schedule& s) { Swap(s, 1, {Kind::kInputGradient, 1, 0}, {Kind::kWeightGradient, 1, 0}); }, "rank 1", "1W0",
       "comes before 1I0"},
      {"the last stage before the one before it, on its rank", "zbv",
       [](Schedule& s) { Swap(s, 1, {Kind::kForward, 1, 0}, {Kind::kForward, 2, 0}); }, "rank 1", "2F0",
       "comes before 1F0"},
      {"received in another order", "gpipe",
       [](Schedule& s) {
         Swap(s, 1, {Kind::kRecvForward, 1, 1}, {Kind::kRecvForward, 1, 2});
         Swap(s, 1, {Kind::kForward, 1, 1}, {Kind::kForward, 1, 2});
       },
       "rank 1", "1RECV_F2", "which sends it as its message 2"},
      {"sent in another order", "gpipe",
       [](Schedule& s) { Swap(s, 0, {Kind::kSendForward, 0, 2}, {Kind::kSendForward, 0, 3}); }, "rank 0", "0SEND_F3",
       "comes before 0F3"},
      {"never reduced", "1f1b", [](Schedule& s) { Remove(s, 1, {Kind::kReduce, 1, 0}); }, "rank 1", "1REDUCE_GRAD",
       "is missing"},
      {"reduced too early", "1f1b", [](Schedule& s) { Swap(s, 0, {Kind::kReduce, 0, 0}, {Kind::kBackward, 0, 3}); },
       "rank 0", "0B3", "comes after its stage's gradients were reduced"},
      {"parameters never gathered", "1f1b", [](Schedule& s) { Remove(s, 0, {Kind::kUnshard, 0, 0}); }, "rank 0", "0F0",
       "are not gathered"},
      {"parameters never freed", "1f1b", [](Schedule& s) { Remove(s, 1, {Kind::kReshard, 1, 0}); }, "rank 1",
       "1RESHARD", "is missing at the end"},
  };
  return broken;
}

TEST(Checker, BrokenSchedulesAreRefusedByRankAndAction) {
  ASSERT_GE(AllBroken().size(), 20u);
  for (const Broken& each : AllBroken()) {
    Schedule schedule = Built(each.schedule, {2, std::string(each.schedule) == "zbv" ? 4 : 2, 4});
    ASSERT_EQ(WhyWrong(schedule), "right") << each.schedule;
    each.damage(schedule);
    EXPECT_THAT(WhyWrong(schedule), AllOf(HasSubstr(each.rank), HasSubstr(each.action), HasSubstr(each.why)))
        << each.what;
  }
}

// pytorch#172668: ranks that both send before either receives.
TEST(Checker, SendsThatWaitForEachOtherAreRefusedUnlessTheyShareATurn) {
  // 0SEND_F1 and 0RECV_B0 are a turn, and so are 1SEND_B0 and 1RECV_F1.
  const char* const together =
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n";
  EXPECT_EQ(WhyWrong(*ParseSchedule(together)), "right");
  // Rank 0 sends micro-batch 2 by itself, while rank 1 sends it the first gradient.
  const char* const alone =
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0F3,0SEND_F3,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2,0RECV_B3,"
      "0B3,"
      "0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2,1RECV_F3,1F3,1B3,1SEND_"
      "B3,"
      "1REDUCE_GRAD,1RESHARD\n";
  EXPECT_THAT(WhyWrong(*ParseSchedule(alone)),
              AllOf(HasSubstr("rank 0 stands still at 0SEND_F2 (action"), HasSubstr("for 1RECV_F2 of rank 1"),
                    HasSubstr("rank 1 stands still at 1SEND_B0"), HasSubstr("for 0RECV_B0 of rank 0")));
}

TEST(Checker, SizesThatDoNotFitAreRefused) {
  Schedule schedule = Built("1f1b", {2, 2, 4});
  schedule.ranks = 3;
  EXPECT_THAT(WhyWrong(schedule), HasSubstr("the sizes do not fit"));
  schedule = Built("1f1b", {2, 2, 4});
  schedule.rank_of_stage[1] = 7;
  EXPECT_THAT(WhyWrong(schedule), HasSubstr("stage 1 is on rank 7, which does not exist"));
}

TEST(Checker, CountsMessagesTurnsAndActivations) {
  const auto report = CheckSchedule(Built("1f1b", {3, 3, 6}));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->messages, 2 * 2 * 6);
  EXPECT_EQ(report->passes, 3 * 2 * 6);
  EXPECT_THAT(report->peak_activations, ::testing::ElementsAre(3, 2, 1));
  EXPECT_EQ(CheckSchedule(Built("zbv", {1, 2, 3}))->messages, 0);
}

// Stage 2's first output and another message of stage 0 in one turn: the sizes would be sent before 0F1 and received
// after it.
TEST(Checker, RefusesAFirstOutputThatChangesPlacesWithAnotherMessage) {
  const std::string first =
      "0UNSHARD,2UNSHARD,0F0,0SEND_F0,0F1,2RECV_F0,2F0,0SEND_F1,2SEND_F0,2RECV_F1,2F1,2SEND_F1,"
      "2RECV_B0,2B0,2SEND_B0,2RECV_B1,2B1,2SEND_B1,0RECV_B0,0B0,0RECV_B1,0B1,"
      "0REDUCE_GRAD,2REDUCE_GRAD,0RESHARD,2RESHARD\n";
  const std::string second =
      "1UNSHARD,3UNSHARD,1RECV_F0,1F0,1SEND_F0,1RECV_F1,3RECV_F0,1F1,1SEND_F1,3F0,3RECV_F1,3F1,"
      "3B0,3SEND_B0,3B1,3SEND_B1,1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1,"
      "1REDUCE_GRAD,3REDUCE_GRAD,1RESHARD,3RESHARD\n";
  const auto together = ParseSchedule(first + second);
  ASSERT_TRUE(together.ok()) << together.status();
  EXPECT_THAT(WhyWrong(*together), AllOf(HasSubstr("rank 1"), HasSubstr("1RECV_F1"), HasSubstr("change places")));
  // One after the other, with a pass between them on both sides.
  std::string sends = first, receives = second;
  sends.replace(sends.find("2F0,0SEND_F1"), 12, "0SEND_F1,2F0");
  receives.replace(receives.find("3RECV_F0,1F1,1SEND_F1,"), 22, "1F1,1SEND_F1,3RECV_F0,");
  const auto apart = ParseSchedule(sends + receives);
  ASSERT_TRUE(apart.ok()) << apart.status();
  EXPECT_EQ(WhyWrong(*apart), "right");
}

}  // namespace
}  // namespace cohort::trainer
