// Waits that come to sleeping, as another process sees them in the segment.
#include "cohort/runtime/engine/shown_wait.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "cohort/runtime/base/futex.h"
#include "cohort/runtime/base/sanitizer.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/engine/work.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/segment.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::runtime {
namespace {

using std::chrono::seconds;

// The rank's side, in a process of its own, whose CPU time is its own too.
struct Rank {
  Segment& segment;
  Engine& engine;
  uint64_t ticket = 0;
  bool Told() const { return segment.control(1).events.load() != 0; }
  void Wait(Deadline deadline = Deadline::Infinite()) {
    engine.DriveUntil([this] { return Told(); }, deadline, nullptr, {ticket, ticket});
  }
};

class ShownWaitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = Segment::Create({.local_ranks = 2});
    ASSERT_TRUE(created.ok()) << created.status();
    agent_ = *std::move(created);
  }
  void TearDown() override { End(); }

  // Runs `wait` in another process, which has made one call before.
  void Start(const std::function<void(Rank&)>& wait) {
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ > 0) return;
    auto segment = Segment::Attach(dup(agent_->fd()), 0);
    if (!segment.ok()) _exit(1);
    Engine engine(segment->get(), 2);
    Rank rank{**segment, engine};
    CallRecord record;
    record.signature.kind = 3;
    rank.ticket = (*segment)->black_box().Start(record);
    wait(rank);
    _exit(0);
  }
  void End() {
    if (child_ <= 0) return;
    agent_->control(1).events.store(1);
    agent_->Wake(0);
    int status = 0;
    ASSERT_EQ(waitpid(child_, &status, 0), child_);
    EXPECT_EQ(status, 0);
    child_ = 0;
  }
  std::optional<Wait> Read() const { return ReadWait(agent_->control(0), agent_->black_box_of(0)); }
  // A wait that has been looked at so often.
  Wait Await(const std::function<bool(const Wait&)>& wanted) const {
    const Deadline deadline = Deadline::After(seconds(30));
    while (!deadline.passed()) {
      const std::optional<Wait> wait = Read();
      if (wait.has_value() && wanted(*wait)) return *wait;
      std::this_thread::yield();
    }
    ADD_FAILURE() << "it never came to that";
    return {};
  }

  std::unique_ptr<Segment> agent_;
  pid_t child_ = 0;
};

TEST_F(ShownWaitTest, AWaitOfOneQuietThreadIsBound) {
  Start([](Rank& rank) { rank.Wait(); });
  const Wait wait = Await([](const Wait& shown) { return shown.bound; });
  EXPECT_EQ(wait.awaited.size(), 1u);
  const Wait later = Await([](const Wait& shown) { return shown.bound && shown.looks >= 6; });
  EXPECT_EQ(later.number, wait.number);
  End();
  EXPECT_FALSE(Read().has_value());
}

constexpr uint64_t kLooks = 6;  // by which it would be bound

TEST_F(ShownWaitTest, AWaitWithADeadlineIsNotBound) {
  Start([](Rank& rank) { rank.Wait(Deadline::After(seconds(100))); });
  EXPECT_FALSE(Await([](const Wait& shown) { return shown.looks >= kLooks; }).bound);
}

TEST_F(ShownWaitTest, AWaitInAProcessThatComputesIsNotBound) {
  Start([](Rank& rank) {
    std::thread other([&rank] {
      while (!rank.Told()) {
      }
    });
    rank.Wait();
    other.join();
  });
  EXPECT_FALSE(Await([](const Wait& shown) { return shown.looks >= kLooks; }).bound);
}

// It may make its first call when it has read what it waits for.
TEST_F(ShownWaitTest, AWaitBesideAThreadThatSleepsIsNotSoonBound) {
  Start([](Rank& rank) {
    std::thread other([&rank] {
      while (!rank.Told())
        FutexWait(rank.segment.control(1).events, 0, FutexScope::kShared, Deadline::After(seconds(1) / 5));
    });
    rank.Wait();
    other.join();
  });
  EXPECT_FALSE(Await([](const Wait& shown) { return shown.looks >= 2 * kLooks; }).bound);
}

TEST_F(ShownWaitTest, AWaitBesideThreadsOfCohortIsBound) {
  if (COHORT_THREAD_SANITIZER) GTEST_SKIP() << "the sanitizer's thread counts as one that may yet make the call";
  Start([](Rank& rank) {
    rank.engine.StartProgressThread();
    rank.Wait();
    rank.engine.StopProgressThread();
  });
  EXPECT_TRUE(Await([](const Wait& shown) { return shown.bound; }).bound);
}

TEST_F(ShownWaitTest, AWaitIsNotBoundWhereTheEngineDetectsNoDeadlocks) {
  Start([](Rank& rank) {
    rank.engine.set_detects_deadlocks(false);
    rank.Wait();
  });
  EXPECT_FALSE(Await([](const Wait& shown) { return shown.looks >= kLooks; }).bound);
}

// The thread that drove before ends its wait when it finds that another one drives.
TEST_F(ShownWaitTest, AWaitStaysShownWhenAnEarlierThreadsWaitEnds) {
  auto segment = Segment::Attach(dup(agent_->fd()), 0);
  ASSERT_TRUE(segment.ok()) << segment.status();
  std::optional<ShownWait> earlier(segment->get());
  earlier->Sleeps({1, 1}, Deadline::Infinite(), false);
  ShownWait later(segment->get());
  later.Sleeps({2, 2}, Deadline::Infinite(), false);
  const uint64_t number = Await([](const Wait&) { return true; }).number;
  earlier.reset();
  EXPECT_EQ(ReadWaitNumber(agent_->control(0)).number, number);
}

TEST_F(ShownWaitTest, AWaitInAProcessWithSeveralCallersIsNotBound) {
  Start([](Rank& rank) {
    std::thread other([&rank] { (void)rank.segment.black_box().Start(CallRecord()); });
    other.join();
    rank.Wait();
  });
  EXPECT_FALSE(Await([](const Wait& shown) { return shown.looks >= kLooks; }).bound);
}

TEST_F(ShownWaitTest, AWaitInAProcessWithSeveralWaitersIsNotBound) {
  Start([](Rank& rank) {
    std::thread other([&rank] { rank.engine.DriveUntil([] { return false; }, Deadline::Now()); });
    other.join();
    rank.engine.DriveUntil([] { return false; }, Deadline::Now());
    rank.Wait();
  });
  EXPECT_FALSE(Await([](const Wait& shown) { return shown.looks >= kLooks; }).bound);
}

TEST_F(ShownWaitTest, AWaitIsNotBoundWhileAListenerMayMakeCalls) {
  class Pending final : public WorkState {
   public:
    Pending() { Reset(1); }

   private:
    void Wait(Deadline) override {}
  };
  Start([](Rank& rank) {
    static Work pending = Work::Adopt(new Pending());
    pending.Then([](const absl::Status&) {});
    rank.Wait();
  });
  EXPECT_FALSE(Await([](const Wait& shown) { return shown.looks >= kLooks; }).bound);
}

TEST_F(ShownWaitTest, AWaitGetsAnotherNumberWhenSomethingMoves) {
  // It moves seldom: the engine polls without a pause, and shows no wait, for a while after each time.
  class Source final : public ProgressSource {
   public:
    bool Poll() override {
      if (!rest_.passed()) return false;
      rest_ = Deadline::After(std::chrono::milliseconds(200));
      return true;
    }
    bool Active() const override { return true; }

   private:
    Deadline rest_ = Deadline::After(std::chrono::milliseconds(200));
  };
  Start([](Rank& rank) {
    Source source;
    {
      EngineLock lock(rank.engine);
      rank.engine.Add(&source);
    }
    rank.Wait();
    EngineLock lock(rank.engine);
    rank.engine.Remove(&source);
  });
  const uint64_t number = Await([](const Wait&) { return true; }).number;
  (void)Await([number](const Wait& shown) { return shown.number != number; });
}

}  // namespace
}  // namespace cohort::runtime
