// The ranks of why_test.cc and why_trials.py: make steps, in which one of them is slow.
//   SHAPE KIND RANK WHEN MS STEPS [TIMEOUT_MS]
// SHAPE: replicas, which reduce, or pipeline, whose ranks hand on messages. KIND: none, compute, uneven, read, write,
// lock, file_lock, child, sleep, stop. RANK is slow in step WHEN, in each ("every"), or in each eighth ("some"), by MS
// milliseconds. STEPS 0: no end. RANK prints "slow" when it is about to be so for the first time. TIMEOUT_MS: of the
// reduction behind the slowness.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

using std::chrono::milliseconds;

struct Wanted {
  std::string shape, kind, when;
  int rank = 0;
  int ms = 0;
  int64_t steps = 0;
  comm::CallOptions options;

  bool SlowAt(int64_t step) const {
    if (when == "every") return true;
    if (when == "some") return step % 8 == 7;
    return step == std::atoll(when.c_str());
  }
};

// As much CPU time of this thread.
void Compute(milliseconds time) {
  const auto used = [] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  const auto end = used() + time;
  while (used() < end) continue;
}

// Slow in one way or another. `Prepare` first, from the main thread.
class Slowness {
 public:
  explicit Slowness(const Wanted& wanted) : kind_(wanted.kind), time_(wanted.ms) {}
  ~Slowness() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  // One that is to stop has a child that lets it go on.
  bool Prepare() {
    if (::pipe(pipe_) != 0) return false;
    if (kind_ != "stop") return true;
    child_ = ::fork();
    if (child_ != 0) return child_ > 0;
    const pid_t parent = ::getppid();
    for (char word = 0; ::read(pipe_[0], &word, 1) == 1;) {
      ::usleep(static_cast<useconds_t>(time_.count()) * 1000);
      ::kill(parent, SIGCONT);
    }
    ::_exit(0);
  }

  void BeSlow() {
    const char word = '.';
    if (kind_ == "compute" || kind_ == "uneven") Compute(time_);
    if (kind_ == "sleep") std::this_thread::sleep_for(time_);
    if (kind_ == "read") {
      std::thread writer([&] {
        std::this_thread::sleep_for(time_);
        (void)!::write(pipe_[1], &word, 1);
      });
      char read = 0;
      (void)!::read(pipe_[0], &read, 1);
      writer.join();
    }
    if (kind_ == "write") AwaitRoom();
    if (kind_ == "lock") AwaitLock();
    if (kind_ == "file_lock") AwaitFileLock();
    if (kind_ == "child") AwaitChild();
    if (kind_ == "stop" && ::write(pipe_[1], &word, 1) == 1) ::raise(SIGSTOP);
  }

 private:
  // A pipe that is full, until its reader has taken all of it.
  void AwaitRoom() {
    std::vector<char> bytes(4096);
    const int capacity = ::fcntl(pipe_[1], F_GETPIPE_SZ);
    std::thread reader([&] {
      std::this_thread::sleep_for(time_);
      std::vector<char> taken(1u << 20);
      for (ssize_t rest = capacity + static_cast<ssize_t>(bytes.size()); rest > 0;) {
        const ssize_t n = ::read(pipe_[0], taken.data(), static_cast<size_t>(rest));
        if (n <= 0) break;
        rest -= n;
      }
    });
    for (ssize_t rest = capacity + static_cast<ssize_t>(bytes.size()); rest > 0;) {
      const ssize_t n = ::write(pipe_[1], bytes.data(), bytes.size());
      if (n <= 0) break;
      rest -= n;
    }
    reader.join();
  }

  // Another open file has it for that time.
  void AwaitFileLock() {
    const int held = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int wanted = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    ::flock(held, LOCK_EX);
    std::thread holder([&] {
      std::this_thread::sleep_for(time_);
      ::close(held);
    });
    ::flock(wanted, LOCK_EX);
    ::close(wanted);
    holder.join();
  }

  void AwaitChild() {
    const pid_t child = ::fork();
    if (child == 0) {
      ::usleep(static_cast<useconds_t>(time_.count()) * 1000);
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
  }

  // Another thread has it for that time.
  void AwaitLock() {
    runtime::Mutex lock, begun;
    runtime::CondVar changed;
    bool held = false;
    std::thread holder([&] {
      runtime::MutexLock hold(lock);
      {
        runtime::MutexLock guard(begun);
        held = true;
        changed.NotifyAll();
      }
      std::this_thread::sleep_for(time_);
    });
    {
      runtime::MutexLock guard(begun);
      while (!held) changed.Wait(begun);
    }
    {
      runtime::MutexLock hold(lock);
    }
    holder.join();
  }

  const std::string kind_;
  const milliseconds time_;
  int pipe_[2] = {-1, -1};
  pid_t child_ = 0;
};

absl::Status Reduce(comm::Communicator& world, const comm::CallOptions& options, std::vector<float>* data) {
  return world.AllReduce(*data, *data, comm::ReduceOp::kMax, options).Wait();
}

absl::Status StepOfReplica(comm::Communicator& world, const Wanted& wanted, const std::function<void()>& slow,
                           std::vector<float>* data) {
  Compute(milliseconds(4));
  slow();
  COHORT_RETURN_IF_ERROR(Reduce(world, wanted.options, data));
  Compute(milliseconds(1));
  return world.AllReduce(*data, *data, comm::ReduceOp::kMin).Wait();
}

absl::Status StepOfStage(comm::Communicator& world, const Wanted& wanted, const std::function<void()>& slow,
                         std::vector<float>* data) {
  constexpr int kBatches = 4;
  std::vector<comm::Work> sent;
  for (int batch = 0; batch < kBatches; ++batch) {
    if (world.rank() > 0) COHORT_RETURN_IF_ERROR(world.Recv(*data, world.rank() - 1).Wait());
    Compute(milliseconds(2));
    if (batch == kBatches / 2) slow();
    if (world.rank() + 1 < world.size()) sent.push_back(world.Send(*data, world.rank() + 1));
  }
  for (comm::Work& work : sent) COHORT_RETURN_IF_ERROR(work.Wait());
  return Reduce(world, wanted.options, data);
}

absl::Status Run(const Wanted& wanted, Slowness* slowness) {
  COHORT_ASSIGN_OR_RETURN(const auto runtime, runtime::Runtime::Init());
  COHORT_ASSIGN_OR_RETURN(const auto world, comm::Communicator::World(*runtime));
  std::vector<float> data(16, 1);
  std::printf("up\n");
  std::fflush(stdout);
  bool was_slow = false;
  for (int64_t step = 0; wanted.steps == 0 || step < wanted.steps; ++step) {
    const auto slow = [&] {
      if (world->rank() != wanted.rank || !wanted.SlowAt(step)) return;
      if (!std::exchange(was_slow, true)) {
        std::printf("slow\n");
        std::fflush(stdout);
      }
      slowness->BeSlow();
    };
    COHORT_RETURN_IF_ERROR(wanted.shape == "pipeline" ? StepOfStage(*world, wanted, slow, &data)
                                                      : StepOfReplica(*world, wanted, slow, &data));
  }
  return runtime->Finalize();
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  cohort::Wanted wanted{.shape = argv[1],
                        .kind = argv[2],
                        .when = argv[4],
                        .rank = std::atoi(argv[3]),
                        .ms = std::atoi(argv[5]),
                        .steps = std::atoll(argv[6]),
                        .options = {}};
  if (argc > 7) wanted.options.timeout = std::chrono::milliseconds(std::atoll(argv[7]));
  cohort::Slowness slowness(wanted);
  if (!slowness.Prepare()) return 3;
  const absl::Status status = cohort::Run(wanted, &slowness);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
