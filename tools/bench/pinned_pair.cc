#include "tools/bench/pinned_pair.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

#include "tools/program/program.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace cohort::bench {
namespace {

constexpr int kBatch = 100;

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "benchmark: %s\n", why.c_str());
  std::exit(1);
}

void Pin(int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace

uint64_t Ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

double NanosecondsPerTick() {
  static const double value = [] {
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t first = Ticks();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(50)) {
    }
    const uint64_t last = Ticks();
    const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - begin;
    return static_cast<double>(passed.count()) / static_cast<double>(last - first);
  }();
  return value;
}

void Side::Gate() {
  std::atomic<uint64_t>& own = shared_.sides[rank_].arrivals;
  const std::atomic<uint64_t>& other = shared_.sides[1 - rank_].arrivals;
  own.store(++gates_, std::memory_order_seq_cst);
  for (int spins = 0; other.load(std::memory_order_acquire) < gates_; ++spins) {
    if (spins > 2000) sched_yield();
  }
}

void Side::TimeGated(int calls, const std::function<void()>& call) {
  for (int i = 0; i < calls; ++i) {
    Gate();
    const uint64_t begin = Ticks();
    call();
    Record(Ticks() - begin);
  }
}

void Side::TimeBackToBack(int calls, const std::function<void()>& call) {
  for (int i = 0; i < calls / kBatch; ++i) {
    Gate();
    const uint64_t begin = Ticks();
    for (int j = 0; j < kBatch; ++j) call();
    Record((Ticks() - begin) / kBatch);
  }
}

Statistics RunPair(const std::function<void(Side&)>& body) {
  auto segment = runtime::Segment::Create({.local_ranks = 2, .job_id = "benchmark"});
  if (!segment.ok()) Die(segment.status().ToString());
  void* memory = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("no memory");
  auto* shared = static_cast<SharedState*>(memory);  // zeroed by the kernel, which is what its members start from
  for (int rank = 0; rank < 2; ++rank) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Pin(rank);
    auto attached = runtime::Segment::Attach(dup((*segment)->fd()), rank);
    if (!attached.ok()) Die(attached.status().ToString());
    Side side(rank, *shared, **attached);
    measure::FlagPingPong flags(&shared->flags, rank);
    const double before = flags.Measure();
    body(side);
    const double after = flags.Measure();
    if (rank == 0) {
      shared->flag_before_ns = before;
      shared->flag_after_ns = after;
    }
    _exit(0);
  }
  for (int left = 2; left > 0; --left) {  // whichever ends first: the other may wait for it
    int status = 0;
    if (waitpid(-1, &status, 0) < 0 || status != 0) Die("a side has failed");
  }
  const uint32_t samples =
      std::min({shared->sides[0].samples.load(), shared->sides[1].samples.load(), uint32_t{kMostSamples}});
  std::vector<double> times;
  for (uint32_t i = 0; i < samples; ++i) {
    times.push_back(static_cast<double>(std::max(shared->sides[0].ticks[i], shared->sides[1].ticks[i])) *
                    NanosecondsPerTick());
  }
  const double before = shared->flag_before_ns;
  const double after = shared->flag_after_ns;
  munmap(memory, sizeof(SharedState));
  if (times.empty()) Die("nothing was measured");
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2], times[times.size() * 99 / 100], before, after};
}

void PrintHeader(const std::string& title) {
  std::printf("\n%-34s %10s %10s %10s %10s  %s\n", title.c_str(), "bytes", "min ns", "median ns", "p99 ns",
              "flag ns before, after");
}

void PrintRow(const std::string& what, size_t bytes, const Statistics& statistics) {
  const double before = statistics.flag_before_ns;
  const double after = statistics.flag_after_ns;
  const std::string placement(measure::PlacementOf(before, after));
  std::printf("%-34s %10zu %10.0f %10.0f %10.0f  %4.0f %4.0f %s\n", what.c_str(), bytes, statistics.minimum,
              statistics.median, statistics.p99, before, after, placement.c_str());
  tools::FlushOutput("shm_bench");
}

}  // namespace cohort::bench
