// One rank of a job in which one rank goes wrong in a chosen way (diagnosis_trials.py): runs all-reduces until a call
// fails, then says so and exits with 1, as programs do.
//
//   diagnosis_ranks FAULT VICTIM CALLS
//
// FAULT is done by rank VICTIM after CALLS calls. All print "ready" after their first call. With FAULT "none" or "wait"
// the job waits for what is done to it from outside; "wait": calls time out soon.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using comm::Communicator;
using comm::ReduceOp;

constexpr std::chrono::seconds kTimeout{2};       // of each call, where the others are to give up on the victim
constexpr std::chrono::seconds kLongTimeout{30};  // otherwise
constexpr std::chrono::milliseconds kBetweenCalls{2};

[[noreturn]] void SleepForever() {
  for (;;) ::pause();
}

void Say(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

[[noreturn]] void Die(int signal) {
  ::raise(signal);
  std::abort();  // the signal should have ended this process
}

// Touches memory until something ends it.
[[noreturn]] void TakeAllMemory() {
  constexpr size_t kBlock = size_t{8} << 20;
  for (std::vector<std::unique_ptr<char[]>> blocks;;) {
    blocks.push_back(std::make_unique<char[]>(kBlock));
    std::memset(blocks.back().get(), 1, kBlock);
  }
}

[[noreturn]] void ComputeForever() {
  for (volatile uint64_t sum = 0;;) sum = sum + 1;
}

[[noreturn]] void HitLimit(int resource, rlim_t limit) {
  const rlimit limits{limit, limit + 1};
  ::setrlimit(static_cast<__rlimit_resource>(resource), &limits);
  if (resource == RLIMIT_AS) TakeAllMemory();
  if (resource == RLIMIT_FSIZE) {
    std::FILE* const file = std::tmpfile();
    for (const std::string block(1 << 16, 'x');;) {
      if (std::fputs(block.c_str(), file) < 0 || std::fflush(file) != 0) std::abort();
    }
  }
  ComputeForever();
}

// Locks what it has locked already.
[[noreturn]] void WaitForItself() {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  ::pthread_mutex_lock(&mutex);
  ::pthread_mutex_lock(&mutex);
  std::abort();  // the mutex should have kept it
}

// Faults for which the others are to give up on the victim after a short time.
bool LeavesTheOthersWaiting(const std::string& fault) {
  static const std::set<std::string> faults = {"hang", "slow", "deadlock", "spin", "exit_hangs", "wait"};
  return faults.contains(fault);
}

// The victim's faults by name. A fault that returns goes on with the calls.
const std::map<std::string, std::function<void()>>& Faults() {
  static const std::map<std::string, std::function<void()>> faults = {
      {"exit", [] { std::exit(42); }},
      {"message",
       [] {
         Say("diagnosis_ranks: no tensor named 'weight' in the checkpoint");
         std::exit(3);
       }},
      {"leave", [] { std::exit(0); }},
      {"kill", [] { Die(SIGKILL); }},
      {"segv", [] { Die(SIGSEGV); }},
      {"bus", [] { Die(SIGBUS); }},
      {"fpe", [] { Die(SIGFPE); }},
      {"ill", [] { Die(SIGILL); }},
      {"abort",
       [] {
         Say("diagnosis_ranks: assertion failed: loss is finite");
         std::abort();
       }},
      {"exception", [] { throw std::runtime_error("the data loader has lost its file"); }},
      {"bad_alloc", [] { HitLimit(RLIMIT_AS, rlim_t{4} << 30); }},
      {"memory", [] { TakeAllMemory(); }},
      {"cpu_limit", [] { HitLimit(RLIMIT_CPU, 1); }},
      {"file_limit", [] { HitLimit(RLIMIT_FSIZE, 1 << 20); }},
      {"hang", [] { SleepForever(); }},
      {"slow", [] { std::this_thread::sleep_for(2 * kTimeout); }},
      {"stop", [] { ::raise(SIGSTOP); }},
      {"deadlock", [] { WaitForItself(); }},
      {"spin", [] { ComputeForever(); }},
      {"thread_exit", [] { std::thread([] { std::exit(5); }).join(); }},
      {"exit_hangs",
       [] {
         std::atexit([] { SleepForever(); });
         std::exit(6);
       }},
      {"flood",
       [] {
         for (int line = 0; line < 50'000; ++line) Say("step " + std::to_string(line) + ": loss 0.5");
         Say("diagnosis_ranks: the loss is no number");
         std::exit(7);
       }},
      {"long_line",
       [] {
         Say(std::string(300'000, 'x'));
         Say("diagnosis_ranks: " + std::string(3000, 'y'));
         std::exit(8);
       }},
      {"no_descriptors",
       [] {
         while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) continue;
         Say(std::string("diagnosis_ranks: can't open the next shard: ") + std::strerror(errno));
         std::exit(9);
       }},
      {"disk_full",
       [] {
         std::FILE* const full = std::fopen("/dev/full", "w");
         if (full == nullptr || (std::fputs("checkpoint", full) >= 0 && std::fclose(full) == 0)) std::exit(98);
         Say(std::string("diagnosis_ranks: can't write the checkpoint: ") + std::strerror(errno));
         std::exit(4);
       }},
  };
  return faults;
}

int Run(const std::string& fault, int victim, int calls) {
  auto job = runtime::Runtime::Init();
  auto made = job.ok() ? Communicator::World(**job) : absl::StatusOr<std::unique_ptr<Communicator>>(job.status());
  if (!made.ok()) {
    Say(made.status().ToString());
    return 2;
  }
  Communicator& world = **made;
  const std::chrono::nanoseconds timeout = LeavesTheOthersWaiting(fault) ? kTimeout : kLongTimeout;
  std::array<float, 64> values{};
  for (int call = 0;; ++call) {
    int64_t count = values.size();
    if (call == calls && world.rank() == victim) {
      if (const auto found = Faults().find(fault); found != Faults().end()) found->second();
      if (fault == "mismatch") count /= 2;
      if (fault == "comm_abort") world.Abort("the loss is no number");
    }
    const absl::Status status = world
                                    .AllReduce({values.data(), count}, {values.data(), count}, ReduceOp::kMax,
                                               {.timeout = timeout, .algorithm = ""})
                                    .Wait();
    if (!status.ok()) {
      Say("diagnosis_ranks: step " + std::to_string(call) + ": " + status.ToString());
      return 1;
    }
    if (call == 0) {
      std::printf("ready\n");
      std::fflush(stdout);
    }
    std::this_thread::sleep_for(kBetweenCalls);
  }
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: diagnosis_ranks FAULT VICTIM CALLS\n");
    return 64;
  }
  return cohort::Run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
}
