// A standby's copy of the log, page after page, and dlaunch's choice among standbys.
#include "cohort/launcher/control/standby/standby.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cohort/launcher/control/standby/standby_choice.h"
#include "tests/launcher/control/standby/replicated_host.h"

namespace cohort::launcher {
namespace {

v1::LogPage Page(uint64_t term, uint64_t first, uint64_t last, uint64_t committed) {
  v1::LogPage page;
  page.set_term(term);
  page.set_committed(committed);
  for (uint64_t number = first; number <= last; ++number) {
    v1::LogEntry& entry = *page.add_entries();
    entry.set_number(number);
    entry.set_time_ns(static_cast<int64_t>(number));
    if (number == 1) {
      *entry.mutable_start() = PlanWithStandbys(2, 1);
    } else {
      entry.set_tick(true);
    }
  }
  return page;
}

TEST(StandbyCopy, TakesPagesInOrder) {
  StandbyCopy copy;
  const TimePoint now{};
  EXPECT_EQ(copy.OnPage(Page(1, 1, 3, 2), now)->received(), 3u);
  EXPECT_EQ(copy.applied(), 2u);
  EXPECT_FALSE(copy.OnPage(Page(1, 5, 5, 2), now).has_value());   // a gap
  EXPECT_EQ(copy.OnPage(Page(1, 2, 4, 2), now)->received(), 4u);  // partly known
  EXPECT_EQ(copy.OnPage(Page(2, 3, 3, 2), now)->received(), 3u);  // whether 4 is the same is not known yet
  EXPECT_FALSE(copy.OnPage(Page(1, 4, 4, 4), now).has_value());   // a host whose term is over
  EXPECT_EQ(copy.OnPage(Page(2, 4, 4, 4), now)->applied(), 4u);
}

// The entries after `applied` that a copy would go on from as the host of term 9; not those that it adds.
std::vector<int64_t> TimesAfter(uint64_t applied, StandbyCopy copy) {
  v1::TakeOver order;
  order.set_term(9);
  order.add_standbys(1);
  Host host(std::move(copy), order, TimePoint{} + std::chrono::hours(1));
  v1::Resume resume;
  resume.set_applied(applied);
  host.Join(FirstConnection(9), 1, resume);
  const v1::LogPage& page = host.Last(FirstConnection(9), v1::ToAgent::kLog).log();
  std::vector<int64_t> times;
  for (const v1::LogEntry& entry : page.entries()) {
    if (entry.time_ns() < 1000) times.push_back(entry.time_ns());
  }
  return times;
}

// The host of term 1 may have acted on entries 3 and 4, which the host of term 2 has too but has sent in part when it
// is lost.
TEST(StandbyCopy, KeepsMessagesThatTheNextHostHasNotSentAgain) {
  StandbyCopy copy;
  (void)copy.OnPage(Page(1, 1, 4, 2), TimePoint{});
  EXPECT_EQ(copy.OnPage(Page(2, 3, 3, 2), TimePoint{})->received(), 3u);
  EXPECT_EQ(TimesAfter(2, std::move(copy)), (std::vector<int64_t>{3, 4}));
}

TEST(StandbyCopy, DropsMessagesThatTheNextHostReplaces) {
  StandbyCopy copy;
  (void)copy.OnPage(Page(1, 1, 4, 2), TimePoint{});
  v1::LogPage other = Page(2, 3, 3, 2);
  other.mutable_entries(0)->set_time_ns(30);
  EXPECT_EQ(copy.OnPage(other, TimePoint{})->received(), 3u);
  EXPECT_EQ(TimesAfter(2, std::move(copy)), (std::vector<int64_t>{30}));
}

TEST(StandbyCopy, TakesNothingThatNoHostSends) {
  const auto taken = [](v1::LogPage page) {
    StandbyCopy copy;
    return copy.OnPage(page, TimePoint{}).has_value();
  };
  EXPECT_TRUE(taken(Page(1, 1, 2, 0)));
  v1::LogPage page = Page(1, 1, 2, 0);
  *page.mutable_entries(1)->mutable_start() = page.entries(0).start();  // a second start
  EXPECT_FALSE(taken(page));
  page = Page(1, 1, 2, 0);
  page.mutable_entries(0)->set_tick(true);  // none
  EXPECT_FALSE(taken(page));
  page = Page(1, 1, 2, 0);
  page.mutable_entries(0)->mutable_start()->mutable_placements(0)->set_node(7);
  EXPECT_FALSE(taken(page));
  page = Page(1, 1, 3, 0);
  page.mutable_entries(2)->set_time_ns(1);  // back
  EXPECT_FALSE(taken(page));
  page.mutable_entries(2)->set_time_ns(std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(taken(page));
  page = Page(1, 1, 2, 0);
  page.mutable_entries(1)->set_connection(FirstConnection(2));
  EXPECT_FALSE(taken(page));
}

TEST(StandbyChoice, TheChoiceDoesNotWaitForAgentsThatHaveEnded) {
  StandbyChoice choice;
  v1::Standbys standbys;
  standbys.set_term(1);
  for (const uint32_t agent : {1u, 2u, 3u}) standbys.add_agents(agent);
  ASSERT_TRUE(choice.Note(0, standbys).has_value());
  choice.Lose(0);
  choice.Lose(2);
  const auto order = choice.Choose();
  ASSERT_TRUE(order.has_value());
  EXPECT_EQ(choice.host(), 1u);
  ASSERT_EQ(order->standbys_size(), 1);
  EXPECT_EQ(order->standbys(0), 3u);
  EXPECT_TRUE(choice.Doubts(2));  // until it listens
  choice.SetReached();
  EXPECT_FALSE(choice.Doubts(2));
  ASSERT_TRUE(choice.Choose().has_value());
  EXPECT_TRUE(choice.Doubts(3));
  EXPECT_FALSE(choice.Doubts(2));
}

v1::Standbys Wanted(uint64_t term, std::vector<uint32_t> agents) {
  v1::Standbys standbys;
  standbys.set_term(term);
  for (const uint32_t agent : agents) standbys.add_agents(agent);
  return standbys;
}

TEST(StandbyChoice, TheChoiceTakesTheNextStandbyThatTheHostHasNamed) {
  StandbyChoice choice;
  EXPECT_FALSE(choice.Choose().has_value());
  EXPECT_FALSE(choice.Note(1, Wanted(1, {1})).has_value());  // not the host
  EXPECT_TRUE(choice.Note(0, Wanted(1, {1, 2, 3})).has_value());
  EXPECT_TRUE(choice.IsNews(2, 1));
  choice.Lose(1);
  const auto order = choice.Choose();
  ASSERT_TRUE(order.has_value());
  EXPECT_EQ(choice.host(), 2u);
  EXPECT_EQ(order->term(), 2u);
  EXPECT_FALSE(choice.IsNews(3, 1));                        // of the host before
  EXPECT_FALSE(choice.Note(0, Wanted(1, {})).has_value());  // which may say what it wants
  EXPECT_TRUE(choice.Note(2, Wanted(2, {})).has_value());
  EXPECT_FALSE(choice.Choose().has_value());
}

}  // namespace
}  // namespace cohort::launcher
