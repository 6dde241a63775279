#include "cohort/launcher/agent/activity/rank_states.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/runtime/base/clock.h"
#include "tests/launcher/agent/activity/watched_child.h"

namespace cohort::launcher {
namespace {

class RankStatesTest : public ::testing::Test {
 protected:
  // Runs the loop until what was taken satisfies the condition.
  void TakeUntil(const std::function<bool()>& condition) {
    const auto limit = EventLoop::Clock::now() + std::chrono::seconds(60);
    std::function<void()> look = [&] {
      v1::TracedCalls taken;
      states_.Take(&taken);
      for (const v1::RankStates& rank : taken.states()) taken_.push_back(rank);
      if (condition() || EventLoop::Clock::now() > limit) return loop_.Quit();
      loop_.After(std::chrono::milliseconds(100), look);
    };
    look();
    loop_.Run();
    EXPECT_TRUE(condition());
  }
  // Runs the loop for the time of four looks: nothing that could be awaited happens.
  void ExpectNoStates() {
    loop_.After(RankStates::kLookEvery * 4, [this] { loop_.Quit(); });
    loop_.Run();
    v1::TracedCalls taken;
    states_.Take(&taken);
    EXPECT_TRUE(taken.states().empty());
  }
  bool HasSleep() const {
    for (const v1::RankStates& rank : taken_) {
      for (const v1::StateShape& shape : rank.shapes()) {
        if (shape.activity() == static_cast<uint32_t>(Activity::kSleeps)) return true;
      }
    }
    return false;
  }

  EventLoop loop_;
  const WatchedChild child_{[](int) { ::sleep(600); }};
  WatchedProcess process_ = ProcessOf(child_.pid());
  bool waits_ = false;
  int looks_ = 0;
  std::vector<v1::RankStates> taken_;
  RankStates states_{&loop_,
                     {7},
                     {.process_of =
                          [this](int) {
                            ++looks_;
                            return process_;
                          },
                      .waits =
                          [this](int) {
                            EXPECT_NE(process_.pid, 0) << "nothing of it may be asked for";
                            return waits_;
                          }}};
};

TEST_F(RankStatesTest, EqualStatesThatFollowEachOtherAreOne) {
  states_.Watch(true);
  TakeUntil([this] { return HasSleep(); });
  taken_.clear();
  TakeUntil([this] { return HasSleep(); });
  const v1::RankStates& rank = taken_.back();
  EXPECT_EQ(rank.rank(), 7u);
  ASSERT_EQ(rank.shape_size(), 1);
  EXPECT_EQ(rank.shapes(0).object(), "clock_nanosleep");
  EXPECT_GE(rank.length_ns(0), 20'000'000u);
  EXPECT_EQ(rank.computed_ns_size(), 1);
  EXPECT_EQ(rank.queued_ns_size(), 1);
  EXPECT_EQ(rank.throttled_ns_size(), 1);
  EXPECT_GT(rank.begin_ns(0), 0);
}

TEST_F(RankStatesTest, NobodyLooksUnlessTold) {
  ExpectNoStates();
  states_.Watch(true);
  TakeUntil([this] { return HasSleep(); });
  states_.Watch(false);
  ExpectNoStates();
}

// A thread that is stuck in a look stays: each time another one would be one more.
TEST_F(RankStatesTest, OneThreadLooksEachTimeAndTellsOnlyOfThatTime) {
  const auto threads = [] {
    std::set<std::string> found;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      found.insert(thread.path().filename());
    }
    return found;
  };
  states_.Watch(true);
  TakeUntil([this] { return HasSleep(); });
  const std::set<std::string> first = threads();
  states_.Watch(false);
  taken_.clear();
  const uint64_t again_ns = runtime::SteadyNow();
  states_.Watch(true);
  TakeUntil([this] { return HasSleep(); });
  const std::set<std::string> second = threads();  // those of earlier tests may end meanwhile
  EXPECT_TRUE(std::includes(first.begin(), first.end(), second.begin(), second.end()));
  EXPECT_GE(taken_[0].begin_ns(0), static_cast<int64_t>(again_ns));
}

TEST_F(RankStatesTest, ProgramsThatOnlyComputeAreLookedAtHalfAsOften) {
  const WatchedChild busy([](int) {
    while (runtime::SteadyNow() > 0) {
    }
  });
  process_ = ProcessOf(busy.pid());
  const auto computes = [this] {
    return !taken_.empty() && taken_.back().shapes(0).activity() == static_cast<uint32_t>(Activity::kComputes);
  };
  states_.Watch(true);
  TakeUntil(computes);
  // A busy machine may keep it from its CPU at a look, before the kernel has counted that.
  int looked = looks_;
  uint64_t begun_ns = runtime::SteadyNow();
  const uint64_t period_ns = std::chrono::nanoseconds(RankStates::kLookWhileCountedEvery).count();
  int seldom = 0;  // times in a row
  TakeUntil([&] {
    const uint64_t passed_ns = runtime::SteadyNow() - std::exchange(begun_ns, runtime::SteadyNow());
    const int looks = looks_ - std::exchange(looked, looks_);
    if (seldom < 3) seldom = looks > 0 && static_cast<uint64_t>(looks) <= passed_ns / period_ns + 1 ? seldom + 1 : 0;
    return seldom == 3;
  });
}

TEST_F(RankStatesTest, AnotherProcessOfTheSameNumberIsNotWatched) {
  ++process_.start_time;
  states_.Watch(true);
  ExpectNoStates();
}

TEST_F(RankStatesTest, ARankWithoutAProcessHasNoStates) {
  process_ = {};
  states_.Watch(true);
  ExpectNoStates();
  process_ = ProcessOf(child_.pid());
  TakeUntil([this] { return HasSleep(); });
}

}  // namespace
}  // namespace cohort::launcher
