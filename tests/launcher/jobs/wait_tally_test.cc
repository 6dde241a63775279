#include "cohort/launcher/jobs/wait_tally.h"

#include <gtest/gtest.h>

#include <vector>

#include "cohort/comm/types.h"
#include "cohort/launcher/jobs/live_view.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kGroup = 7;

// A node of two ranks from `first` on; those before `late` wait in the group's second barrier, the others are before
// it.
v1::NodeView View(uint32_t first, uint32_t late) {
  v1::NodeView view;
  v1::WaitedGroup& group = *view.add_groups();
  group.set_group(kGroup);
  group.mutable_members()->set_everyone(true);
  for (uint32_t i = first; i < first + 2; ++i) {
    v1::RankView& rank = *view.add_ranks();
    rank.set_rank(i);
    rank.set_pid(100);
    v1::RankWait& wait = *rank.mutable_wait();
    wait.set_rank(i);
    v1::LatestCall& latest = *wait.add_latest();
    latest.set_group(kGroup);
    latest.set_peer(-1);
    latest.set_sequence(i < late ? 2 : 1);
    if (i >= late) continue;
    wait.set_number(1);
    v1::AwaitedCall& call = *wait.add_calls();
    call.set_group(kGroup);
    call.set_sequence(2);
    call.set_kind(static_cast<uint32_t>(comm::CollectiveKind::kBarrier));
    call.set_peer(-1);
  }
  return view;
}

constexpr WaitTally::TimePoint kStart{std::chrono::hours(1)};

TEST(WaitTally, CountsTheTimeBetweenLooks) {
  const v1::NodeView first = View(0, 3);
  const v1::NodeView second = View(2, 3);
  WaitTally tally;
  tally.Count({&first, &second}, 4, kStart);
  EXPECT_EQ(tally.WaitingFor(3), 3u);
  EXPECT_EQ(tally.WaitingFor(0), 0u);
  EXPECT_EQ(tally.WaitedFor(3), milliseconds(0)) << "nobody looked before";
  tally.Count({&first, &second}, 4, kStart + milliseconds(700));
  EXPECT_EQ(tally.WaitedFor(3), milliseconds(700));
  const v1::NodeView none = View(2, 4);
  tally.Count({&first, &none}, 4, kStart + seconds(2));
  EXPECT_EQ(tally.WaitingFor(3), 0u);
  EXPECT_EQ(tally.WaitedFor(3), milliseconds(700));
  tally.Count({&first, &second}, 4, kStart + seconds(60));
  EXPECT_EQ(tally.WaitedFor(3), milliseconds(700) + WaitTally::kLongestGap);
}

TEST(WaitTally, NamesTheRankThatWasWaitedForMostWhereManyLooksSayIt) {
  const v1::NodeView first = View(0, 3);
  const v1::NodeView second = View(2, 3);
  const v1::NodeView none = View(2, 4);
  WaitTally tally;
  int looks = 0;
  const auto look = [&](const v1::NodeView& view, int times) {
    for (int i = 0; i < times; ++i) tally.Count({&first, &view}, 4, kStart + seconds(10 * looks++));
  };
  EXPECT_EQ(tally.DescribeLongest(), "") << "nobody looked";
  look(second, 2);
  EXPECT_EQ(tally.DescribeLongest(), "") << "two looks may see it by chance";
  look(second, 14);
  EXPECT_EQ(tally.DescribeLongest(), "rank 3 was waited for at 16 of 16 looks");
  look(none, 64);
  EXPECT_EQ(tally.DescribeLongest(), "") << "a small part of the time";
}

TEST(WaitTally, NamesNobodyWhereRanksTakeTurns) {
  const v1::NodeView early = View(0, 1), late = View(0, 2), both = View(2, 4), third = View(2, 2);
  WaitTally tally;
  for (int i = 0; i < 20; ++i) {
    const bool turn = i % 2 == 0;
    tally.Count({turn ? &early : &late, turn ? &both : &third}, 4, kStart + seconds(i));
  }
  EXPECT_EQ(tally.DescribeLongest(), "");
}

TEST(WaitTally, ANodeThatDidNotAnswerAddsNothing) {
  const v1::NodeView first = View(0, 3);
  WaitTally tally;
  tally.Count({&first, nullptr}, 4, kStart);
  EXPECT_EQ(tally.WaitingFor(3), 0u);
}

TEST(LiveView, WaitsAreCountedWhenAllHaveAnswered) {
  std::vector<v1::NodePlacement> nodes(2);
  for (uint32_t i = 0; i < 4; ++i) nodes[i / 2].add_ranks()->set_rank(i);
  const std::vector<size_t> agents = {0, 1};
  const JobMembers members{&nodes, &agents};
  LiveView live([](size_t, uint64_t) {});
  const auto look = [&](uint64_t number, LiveView::TimePoint now) {
    live.Refresh(members, now);
    for (size_t agent = 0; agent < 2; ++agent) {
      EXPECT_EQ(live.KeepsWaits(), agent > 0);
      v1::NodeView view = View(static_cast<uint32_t>(2 * agent), 3);
      view.set_look(number);
      live.OnView(agent, view, now);
    }
    v1::JobSnapshot status;
    live.AddRanks(members, 0, 100'000, now, &status);
    return status;
  };
  EXPECT_EQ(look(1, kStart).ranks(3).waiting_for(), 3u);
  EXPECT_FALSE(live.KeepsWaits()) << "they are large, and counted";
  const v1::JobSnapshot status = look(2, kStart + seconds(1));
  EXPECT_EQ(status.ranks(3).waited_for_ms(), 1000u);
  EXPECT_EQ(status.ranks(2).waited_for_ms(), 0u);
  EXPECT_FALSE(status.ranks(0).view().has_wait()) << "it would not fit into an answer";
  v1::NodeView late = View(0, 3);
  late.set_look(2);
  live.OnView(0, late, kStart + seconds(1));
  EXPECT_FALSE(live.KeepsWaits()) << "the look is over";
  live.Forget();
  v1::JobSnapshot next;
  live.AddRanks(members, 0, 100'000, kStart, &next);
  EXPECT_EQ(next.ranks(3).waited_for_ms(), 0u);
}

}  // namespace
}  // namespace cohort::launcher
