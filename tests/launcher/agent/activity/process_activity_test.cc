// Processes that do one thing, looked at as an agent looks at its ranks.
#include "cohort/launcher/agent/activity/process_activity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "tests/launcher/agent/activity/watched_child.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Looks every 20 ms until a state satisfies the condition; the last state that was seen.
std::optional<ProcessActivity::State> LookUntil(ProcessActivity* process,
                                                const std::function<bool(const ProcessActivity::State&)>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::optional<ProcessActivity::State> last;
  while (std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(20));  // the time between two looks is what is measured
    const std::optional<ProcessActivity::State> state = process->Look(/*waits=*/false);
    if (state) last = state;
    if (state && condition(*state)) break;
  }
  return last;
}

ProcessActivity::State ExpectActivity(const WatchedChild& child, Activity activity) {
  ProcessActivity process(ProcessOf(child.pid()));
  const auto state = LookUntil(&process, [activity](const auto& one) { return one.activity == activity; });
  EXPECT_TRUE(state.has_value());
  if (!state) return {};
  EXPECT_EQ(ActivityName(state->activity), ActivityName(activity)) << state->object;
  return *state;
}

void Spin() {
  for (std::atomic<uint64_t> turns{0};;) turns.fetch_add(1, std::memory_order_relaxed);
}

TEST(ProcessActivityTest, ABusyProcessComputes) {
  const WatchedChild child([](int) { Spin(); });
  ProcessActivity process(ProcessOf(child.pid()));
  const auto state = LookUntil(&process, [](const auto& one) {
    return one.activity == Activity::kComputes && one.computed_ns > one.length_ns / 4;
  });
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->activity, Activity::kComputes);
  EXPECT_GT(state->computed_ns, 0u);
  EXPECT_LE(state->computed_ns + state->queued_ns + state->throttled_ns, state->length_ns);
}

// The kernel counts the time between two turns on the CPU, which several looks see, when it is over.
TEST(ProcessActivityTest, AllOfTheTimeWithoutACpuIsCounted) {
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET(static_cast<size_t>(::sched_getcpu()), &cpu);
  const auto spins = [&cpu](int nice) {
    return [&cpu, nice](int) {
      if (::sched_setaffinity(0, sizeof cpu, &cpu) != 0 || ::setpriority(PRIO_PROCESS, 0, nice) != 0) ::_exit(1);
      Spin();
    };
  };
  const WatchedChild favoured(spins(0)), starved(spins(8));  // one turn of 3 ms in about 20 ms
  ProcessActivity process(ProcessOf(starved.pid()));
  uint64_t seen_ns = 0, without_ns = 0;
  LookUntil(&process, [&](const auto& state) {
    seen_ns += state.length_ns;
    without_ns += state.queued_ns + state.throttled_ns;
    return seen_ns >= 2'000'000'000;
  });
  EXPECT_GE(seen_ns, 2'000'000'000u);
  EXPECT_GT(without_ns, seen_ns / 10 * 7);
}

TEST(ProcessActivityTest, AReadNamesItsFile) {
  const WatchedChild child([](int pipe) {
    char byte = 0;
    (void)!::read(pipe, &byte, 1);
  });
  EXPECT_THAT(ExpectActivity(child, Activity::kReads).object, StartsWith("read of pipe:["));
}

TEST(ProcessActivityTest, ALockNamesItsFile) {
  std::string path = ::testing::TempDir() + "process_activity_test.XXXXXX";
  const int held = ::mkstemp(path.data());
  ASSERT_GE(held, 0);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  const WatchedChild child([&path](int) {
    const int file = ::open(path.c_str(), O_RDONLY);
    (void)::flock(file, LOCK_EX);
  });
  EXPECT_EQ(ExpectActivity(child, Activity::kLocks).object, "flock of " + path);
  ::close(held);
  ::unlink(path.c_str());
}

TEST(ProcessActivityTest, SleepsAndStopsAreTold) {
  const WatchedChild sleeps([](int) { ::sleep(600); });
  EXPECT_EQ(ExpectActivity(sleeps, Activity::kSleeps).object, "clock_nanosleep");
  ASSERT_EQ(::kill(sleeps.pid(), SIGSTOP), 0);
  ExpectActivity(sleeps, Activity::kStopped);
  ASSERT_EQ(::kill(sleeps.pid(), SIGCONT), 0);
  // The sleep goes on as restart_syscall. Some kernels name its place so that it is known again.
  ProcessActivity process(ProcessOf(sleeps.pid()));
  const auto goes_on = [](const auto& one) {
    return one.activity == Activity::kSleeps || one.activity == Activity::kKernel;
  };
  const auto state = LookUntil(&process, goes_on);
  ASSERT_TRUE(state.has_value());
  EXPECT_TRUE(goes_on(*state)) << ActivityName(state->activity);
}

TEST(ProcessActivityTest, AThreadThatWaitsForBusyThreadsComputes) {
  const WatchedChild child([](int) {
    std::thread busy(Spin);
    busy.join();
  });
  ProcessActivity process(ProcessOf(child.pid()));
  const auto state = LookUntil(&process, [](const auto& one) {
    return one.activity == Activity::kComputes && one.computed_ns >= one.length_ns / 2 && one.object.empty();
  });
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->activity, Activity::kComputes);
}

TEST(ProcessActivityTest, InACallOnlyWhatHoldsItUpCounts) {
  const WatchedChild child([](int) { ::sleep(600); });
  ProcessActivity process(ProcessOf(child.pid()));
  LookUntil(&process, [](const auto& one) { return one.activity == Activity::kSleeps; });
  std::this_thread::sleep_for(milliseconds(20));  // the time between two looks
  EXPECT_EQ(process.Look(/*waits=*/true), std::nullopt);
  ASSERT_EQ(::kill(child.pid(), SIGSTOP), 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::optional<ProcessActivity::State> state;
  while (!state && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(20));
    state = process.Look(/*waits=*/true);
  }
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->activity, Activity::kStopped);
}

TEST(ProcessActivityTest, NothingIsSaidOfAProcessThatHasEnded) {
  pid_t gone = 0;
  {
    const WatchedChild child([](int) { ::sleep(600); });
    gone = child.pid();
    ProcessActivity process(ProcessOf(gone));
    EXPECT_EQ(process.Look(false), std::nullopt) << "the first look";
  }
  ProcessActivity process(ProcessOf(gone));
  EXPECT_EQ(process.Look(false), std::nullopt);
  EXPECT_EQ(process.Look(false), std::nullopt);
}

TEST(ProcessActivityTest, APythonProgramHasALine) {
  if (::access("/usr/bin/python3", X_OK) != 0) GTEST_SKIP() << "no Python is installed here";
  const WatchedChild child(
      [](int) { ::execl("/usr/bin/python3", "python3", "-c", "def load():\n  while True: pass\nload()\n", nullptr); });
  ProcessActivity process(ProcessOf(child.pid()));
  // Python itself runs some of its own before.
  const auto state = LookUntil(&process, [](const auto& one) { return one.place == "<string>:2 in load"; });
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->place, "<string>:2 in load");
}

}  // namespace
}  // namespace cohort::launcher
