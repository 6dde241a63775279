#include "tests/comm/transport/shm/random_delays.h"

#include <cerrno>
#include <csignal>
#include <ctime>
#include <random>

namespace cohort::comm::testing {
namespace {

constexpr uint64_t kLongestGapNs = 100'000;
constexpr uint64_t kLongestSleepNs = 100'000;
constexpr uint64_t kLongestSpin = 3'000;

// The handler's own: it may use nothing that the interrupted code could be in the middle of.
uint64_t state;
timer_t timer;

uint64_t Draw(uint64_t bound) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state % bound;
}

timespec Nanoseconds(uint64_t ns) { return {.tv_sec = 0, .tv_nsec = static_cast<decltype(timespec::tv_nsec)>(ns)}; }

void Delay(int) {
  const int saved = errno;
  switch (Draw(8)) {
    case 0:
      sched_yield();
      break;
    case 1: {
      const timespec pause = Nanoseconds(Draw(kLongestSleepNs));
      nanosleep(&pause, nullptr);
      break;
    }
    default:
      for (volatile uint64_t left = Draw(kLongestSpin); left > 0;) left = left - 1;
  }
  const itimerspec next = {.it_interval = {}, .it_value = Nanoseconds(2'000 + Draw(kLongestGapNs))};
  timer_settime(timer, 0, &next, nullptr);
  errno = saved;
}

}  // namespace

void BeginRandomDelays(uint64_t seed) {
  state = seed * 0x9e3779b97f4a7c15u | 1;
  struct sigaction action = {};
  action.sa_handler = Delay;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGUSR1;
  ASSERT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
  raise(SIGUSR1);
}

void StopAndGoOn(ForkedRanks& ranks, uint64_t seed) {
  std::mt19937_64 random(seed);
  while (ranks.SomeRun()) {
    const int victim = static_cast<int>(random() % static_cast<uint64_t>(ranks.size()));
    ranks.Signal(victim, SIGSTOP);
    const timespec stopped = Nanoseconds(random() % 300'000);
    nanosleep(&stopped, nullptr);
    ranks.Signal(victim, SIGCONT);
    const timespec gap = Nanoseconds(random() % 1'000'000);
    nanosleep(&gap, nullptr);
  }
}

}  // namespace cohort::comm::testing
