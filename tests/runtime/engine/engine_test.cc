#include "cohort/runtime/engine/engine.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

int64_t ProcessCpuNs() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Polls a function, and checks that only one thread at a time does.
class FakeSource : public ProgressSource {
 public:
  explicit FakeSource(std::function<bool()> poll) : poll_(std::move(poll)) {}
  bool Poll() override {
    EXPECT_FALSE(inside_.exchange(true));
    polls.fetch_add(1, std::memory_order_relaxed);
    const bool moved = poll_();
    inside_.store(false);
    return moved;
  }
  bool Active() const override { return active.load(); }
  int Arm(bool* ready) override {
    (void)ready;
    arms.fetch_add(1, std::memory_order_relaxed);
    return descriptor;
  }
  std::atomic<uint64_t> polls{0};
  std::atomic<uint64_t> arms{0};
  std::atomic<bool> active{false};
  int descriptor = -1;

 private:
  std::function<bool()> poll_;
  std::atomic<bool> inside_{false};
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = Segment::Create({.local_ranks = 2});
    ASSERT_TRUE(created.ok()) << created.status();
    agent_ = *std::move(created);
    auto attached = Segment::Attach(dup(agent_->fd()), 0);
    ASSERT_TRUE(attached.ok()) << attached.status();
    segment_ = *std::move(attached);
    engine_ = std::make_unique<Engine>(segment_.get(), 2);
  }
  void Add(FakeSource* source) {
    EngineLock lock(*engine_);
    engine_->Add(source);
  }
  void Remove(FakeSource* source) {
    EngineLock lock(*engine_);
    engine_->Remove(source);
  }
  // Until the engine's thread sleeps and says so to its peers.
  void AwaitParked() {
    const Deadline deadline = Deadline::After(seconds(20));
    while (segment_->control(0).parked.load() == 0 && !deadline.passed()) std::this_thread::yield();
    ASSERT_FALSE(deadline.passed());
  }

  std::unique_ptr<Segment> agent_;
  std::unique_ptr<Segment> segment_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, DrivesUntilDone) {
  int left = 1000;
  FakeSource source([&left] { return left > 0 && --left >= 0; });
  Add(&source);
  EXPECT_TRUE(engine_->DriveUntil([&left] { return left == 0; }, Deadline::After(seconds(20))));
  EXPECT_FALSE(engine_->DriveUntil([] { return false; }, Deadline::Now()));
  EXPECT_FALSE(engine_->DriveUntil([] { return false; }, Deadline::After(milliseconds(5))));
  Remove(&source);
  const uint64_t polls = source.polls.load();
  EXPECT_FALSE(engine_->DriveUntil([] { return false; }, Deadline::Now()));
  EXPECT_EQ(source.polls.load(), polls);
}

TEST_F(EngineTest, SourcesMayComeAndGoWhilePolled) {
  FakeSource late([] { return false; });
  int round = 0;
  FakeSource first([&] {
    if (++round == 1) engine_->Add(&late);
    if (round == 3) engine_->Remove(&late);
    return false;
  });
  Add(&first);
  EngineLock lock(*engine_);
  for (int i = 0; i < 5; ++i) engine_->Poll();
  EXPECT_EQ(late.polls.load(), 2u);
  engine_->Remove(&first);
}

TEST_F(EngineTest, OwnershipOfTheEngineNests) {
  EngineLock outer(*engine_);
  EngineLock inner(*engine_);
  int polls = 0;
  FakeSource source([&polls] { return ++polls > 0; });
  engine_->Add(&source);
  EXPECT_TRUE(engine_->DriveUntil([&polls] { return polls >= 3; }, Deadline::After(seconds(20))));
  engine_->Remove(&source);
}

TEST_F(EngineTest, AnOwnerLetsOthersInWhileItWaits) {
  std::atomic<bool> waits{false}, entered{false};
  std::thread other;
  {
    const EngineLock outer(*engine_);
    const EngineLock inner(*engine_);
    EXPECT_TRUE(outer.outermost());
    EXPECT_FALSE(inner.outermost());
    other = std::thread([&] {
      const Deadline deadline = Deadline::After(seconds(20));
      while (!waits.load() && !deadline.passed()) std::this_thread::yield();
      const EngineLock lock(*engine_);
      EXPECT_TRUE(lock.outermost());
      entered.store(true);
    });
    {
      const EngineRelease release(outer);
      const auto done = [&] {
        waits.store(true);
        return entered.load();
      };
      EXPECT_TRUE(engine_->DriveUntil(done, Deadline::After(seconds(20))));
    }
    // Owned again, as often as before.
    engine_->Poll();
    EXPECT_FALSE(EngineLock(*engine_).outermost());
  }
  other.join();
  EXPECT_TRUE(EngineLock(*engine_).outermost());
}

TEST_F(EngineTest, AParkedWaiterIsWokenByAPeer) {
  std::atomic<bool> sent{false};
  bool received = false;
  FakeSource source([&] { return !received && (received = sent.load(std::memory_order_acquire)); });
  Add(&source);
  std::thread peer([&] {
    AwaitParked();
    sent.store(true, std::memory_order_release);
    agent_->Wake(0);
  });
  EXPECT_TRUE(engine_->DriveUntil([&received] { return received; }, Deadline::After(seconds(20))));
  peer.join();
  EXPECT_EQ(segment_->control(0).parked.load(), 0u);
  Remove(&source);
}

// With a sleep of at most 50 ms a lost wake-up would show as about 50 ms; hundreds of rounds would take far longer.
TEST_F(EngineTest, NoWakeUpIsLost) {
  constexpr int kRounds = 300;
  std::atomic<int> sent{0};
  int received = 0;
  FakeSource source([&] {
    const int now = sent.load(std::memory_order_acquire);
    const bool moved = now != received;
    received = now;
    return moved;
  });
  Add(&source);
  std::atomic<int> answered{0};
  std::thread peer([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (answered.load(std::memory_order_acquire) != round - 1) std::this_thread::yield();
      // Around the moment at which the waiter parks.
      const Deadline moment = Deadline::After(std::chrono::microseconds(900 + round % 200));
      while (!moment.passed()) {
      }
      sent.store(round, std::memory_order_release);
      agent_->Wake(0);
    }
  });
  const auto start = std::chrono::steady_clock::now();
  for (int round = 1; round <= kRounds; ++round) {
    ASSERT_TRUE(engine_->DriveUntil([&] { return received >= round; }, Deadline::After(seconds(60))));
    answered.store(round, std::memory_order_release);
  }
  const auto took = std::chrono::steady_clock::now() - start;
  peer.join();
  EXPECT_LT(took, milliseconds(kRounds * 25));
  Remove(&source);
}

TEST_F(EngineTest, NewWorkWakesASleepingWaiter) {
  std::atomic<int> sent{0};
  std::atomic<int> received{0};
  FakeSource source([&] { return received.exchange(sent.load()) != sent.load(); });
  Add(&source);
  constexpr int kRounds = 20;
  std::thread waiter([&] {
    EXPECT_TRUE(engine_->DriveUntil([&] { return received.load() == kRounds; }, Deadline::After(seconds(60))));
  });
  int quick = 0;  // rounds that did not wait for the end of the sleep, which lasts 50 ms
  for (int round = 1; round <= kRounds; ++round) {
    AwaitParked();
    const auto start = std::chrono::steady_clock::now();
    {
      EngineLock lock(*engine_);
      sent.store(round);
    }
    engine_->Kick();
    const Deadline deadline = Deadline::After(seconds(20));
    while (received.load() != round && !deadline.passed()) std::this_thread::yield();
    quick += static_cast<int>(std::chrono::steady_clock::now() - start < milliseconds(25));
  }
  waiter.join();
  EXPECT_GE(quick, kRounds / 5);
  Remove(&source);
}

TEST_F(EngineTest, DescriptorsAndPeersBothWakeASleeper) {
  const int event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  uint64_t count = 0;
  std::atomic<bool> sent{false};
  FakeSource source([&] { return read(event, &count, sizeof count) > 0; });
  source.descriptor = event;
  Add(&source);
  std::thread peer([&] {
    AwaitParked();
    const uint64_t one = 1;
    EXPECT_EQ(write(event, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  });
  EXPECT_TRUE(engine_->DriveUntil([&count] { return count == 1; }, Deadline::After(seconds(20))));
  peer.join();

  peer = std::thread([&] {
    AwaitParked();
    sent.store(true);
    agent_->Wake(0);
  });
  EXPECT_TRUE(engine_->DriveUntil([&sent] { return sent.load(); }, Deadline::After(seconds(20))));
  peer.join();
  EXPECT_GE(source.arms.load(), 1u);  // what comes at the very moment of going to sleep is found before
  Remove(&source);
  close(event);
}

TEST_F(EngineTest, ManyWaitersEachReturnWhenTheirsIsDone) {
  constexpr int kThreads = 6;
  constexpr int kRounds = 200;
  std::atomic<uint64_t> ticks{0};
  FakeSource source([&ticks] {
    ticks.fetch_add(1);
    return true;
  });
  Add(&source);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const uint64_t goal = ticks.load() + static_cast<uint64_t>(1 + (t * 37 + round * 11) % 400);
        const bool done =
            engine_->DriveUntil([&ticks, goal] { return ticks.load() >= goal; }, Deadline::After(seconds(60)));
        if (!done) failures.fetch_add(1);
        EngineLock lock(*engine_);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  Remove(&source);
}

TEST_F(EngineTest, AWaiterGoesOnWhenTheDriverLeaves) {
  std::atomic<bool> first_done{false};
  std::atomic<bool> second_done{false};
  std::atomic<bool> driven{false};
  FakeSource source([&] {
    driven.store(true);
    return false;
  });
  Add(&source);
  std::thread first([&] { engine_->DriveUntil([&] { return first_done.load(); }, Deadline::After(seconds(60))); });
  std::thread second(
      [&] { EXPECT_TRUE(engine_->DriveUntil([&] { return second_done.load(); }, Deadline::After(seconds(60)))); });
  const auto await = [](const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(seconds(20));
    while (!condition() && !deadline.passed()) std::this_thread::yield();
    EXPECT_FALSE(deadline.passed());
  };
  await([&] { return driven.load(); });
  first_done.store(true);
  first.join();
  driven.store(false);
  await([&] { return driven.load(); });
  second_done.store(true);
  second.join();
  Remove(&source);
}

TEST_F(EngineTest, TheProgressThreadDrivesWhatIsActive) {
  std::atomic<int> left{0};
  FakeSource source([&] { return left.load() > 0 && left.fetch_sub(1) > 0; });
  Add(&source);
  engine_->StartProgressThread();
  engine_->StartProgressThread();
  for (int round = 0; round < 50; ++round) {
    {
      EngineLock lock(*engine_);
      left.store(100);
      source.active.store(true);
    }
    engine_->Kick();
    const Deadline deadline = Deadline::After(seconds(20));
    while (left.load() > 0 && !deadline.passed()) std::this_thread::yield();
    ASSERT_EQ(left.load(), 0);
    source.active.store(false);
  }
  engine_->StopProgressThread();
  Remove(&source);
}

TEST_F(EngineTest, WaitersTakeOverFromTheProgressThreadAndGiveBack) {
  std::atomic<std::thread::id> poller;
  std::atomic<uint64_t> ticks{0};
  FakeSource source([&] {
    poller.store(std::this_thread::get_id());
    ticks.fetch_add(1);
    return true;
  });
  source.active.store(true);
  Add(&source);
  engine_->StartProgressThread();
  engine_->Kick();
  const auto me = std::this_thread::get_id();
  for (int round = 0; round < 100; ++round) {
    int mine = 0;
    const auto polled_here = [&] {
      if (std::this_thread::get_id() == me && poller.load() == me) ++mine;
      return mine >= 50;
    };
    ASSERT_TRUE(engine_->DriveUntil(polled_here, Deadline::After(seconds(20))));
    const uint64_t goal = ticks.load() + 10;
    const Deadline deadline = Deadline::After(seconds(20));
    while (ticks.load() < goal && !deadline.passed()) std::this_thread::yield();
    ASSERT_GE(ticks.load(), goal) << "nobody drives after the waiter has left";
  }
  engine_->StopProgressThread();
  Remove(&source);
}

TEST_F(EngineTest, SourcesThatArePolledWhileActiveCostNothingBetweenOperations) {
  FakeSource group([] { return false; });
  const auto rounds = [&](int count) {
    const EngineLock lock(*engine_);
    for (int i = 0; i < count; ++i) engine_->Poll();
    return group.polls.exchange(0);
  };
  const auto begin = [&] {
    const EngineLock lock(*engine_);
    engine_->PollWhileActive(&group);
    engine_->PollWhileActive(&group);
  };
  EXPECT_EQ(rounds(1000), 0U);
  begin();
  group.active.store(true);
  EXPECT_EQ(rounds(1000), 1000U);
  group.active.store(false);
  EXPECT_LT(rounds(1000), 100U);
  EXPECT_EQ(rounds(1000), 0U);
  begin();
  group.active.store(true);
  EXPECT_EQ(rounds(1000), 1000U);
  Remove(&group);
  EXPECT_EQ(rounds(1000), 0U);
}

// The promise is 1 % of a core over 10 s.
TEST_F(EngineTest, AnIdleWaiterCostsNothing) {
  FakeSource source([] { return false; });
  source.active.store(true);
  Add(&source);
  engine_->StartProgressThread();
  const int64_t before = ProcessCpuNs();
  EXPECT_FALSE(engine_->DriveUntil([] { return false; }, Deadline::After(seconds(2))));
  const int64_t used = ProcessCpuNs() - before;
  ::testing::Test::RecordProperty("cpu_us", static_cast<int>(used / 1000));
  EXPECT_LT(used, 2'000'000'000 / 10);
  engine_->StopProgressThread();
  Remove(&source);
  std::printf("waiting 2 s used %.1f ms of CPU\n", static_cast<double>(used) / 1e6);
}

}  // namespace
}  // namespace cohort::runtime
