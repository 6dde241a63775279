// Runs a function in forked processes that share a segment, and collects their exits.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "cohort/comm/transport/shm/shm_transport.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::testing {

// Words that parent and children share beside the segment.
struct SharedWords {
  std::atomic<uint32_t> words[16];
};

class ForkedRanks {
 public:
  // Holds what a child gets. Its gtest expectations count; it exits when the function returns.
  struct Child {
    int rank;
    runtime::Segment& segment;
    SharedWords& shared;
    std::unique_ptr<ShmTransport> MakeTransport(ShmOptions options = {}) const {
      return std::make_unique<ShmTransport>(segment, rank, [](int peer) { return peer; }, options);
    }
  };
  using Body = std::function<void(const Child&)>;

  ForkedRanks(int ranks, const Body& body) {
    auto segment = runtime::Segment::Create({.local_ranks = ranks, .job_id = "forked"});
    EXPECT_TRUE(segment.ok()) << segment.status();
    segment_ = std::move(*segment);
    void* memory = mmap(nullptr, sizeof(SharedWords), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) SharedWords{};
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) RunChild(rank, body);
      pids_.push_back(pid);
    }
  }
  ~ForkedRanks() {
    for (pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    }
    munmap(shared_, sizeof(SharedWords));
  }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  SharedWords& shared() { return *shared_; }
  int size() const { return static_cast<int>(pids_.size()); }
  void Kill(int rank) { Signal(rank, SIGKILL); }
  // Does nothing once the rank was joined.
  void Signal(int rank, int signal) {
    const pid_t pid = pids_[static_cast<size_t>(rank)];
    if (pid > 0) kill(pid, signal);
  }
  // Ended ranks stay to be joined. When one has failed, the others are killed: they might wait for it.
  bool SomeRun() {
    bool run = false;
    bool failed = false;
    for (const pid_t pid : pids_) {
      siginfo_t info = {};
      if (pid < 0 || waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) continue;
      run |= info.si_pid == 0;
      failed |= info.si_pid != 0 && info.si_status != 0;
    }
    for (int rank = 0; failed && rank < size(); ++rank) Kill(rank);
    return run;
  }
  // Waits for the rank's end and returns its wait status.
  int Join(int rank) {
    int status = -1;
    pid_t& pid = pids_[static_cast<size_t>(rank)];
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    pid = -1;
    return status;
  }
  void ExpectAllSucceed() {
    for (size_t rank = 0; rank < pids_.size(); ++rank) EXPECT_EQ(Join(static_cast<int>(rank)), 0) << "rank " << rank;
  }

 private:
  [[noreturn]] void RunChild(int rank, const Body& body) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    {
      auto segment = runtime::Segment::Attach(dup(segment_->fd()), rank);
      EXPECT_TRUE(segment.ok()) << segment.status();
      if (segment.ok()) body({rank, **segment, *shared_});
    }
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }

  std::unique_ptr<runtime::Segment> segment_;
  SharedWords* shared_ = nullptr;
  std::vector<pid_t> pids_;
};

// Tries until the operation is done; false when it fails or nothing comes for 30 s.
template <typename Attempt>
bool Drive(Attempt attempt) {
  const auto deadline = runtime::Deadline::After(std::chrono::seconds(30));
  for (;;) {
    for (int i = 0; i < 100; ++i) {
      const Progress progress = attempt();
      if (progress == Progress::kDone) return true;
      if (progress == Progress::kFailed) return false;
      if (progress == Progress::kBlocked) sched_yield();
    }
    if (deadline.passed()) return false;
  }
}

template <typename Condition>
bool WaitFor(Condition condition) {
  return Drive([&condition] { return condition() ? Progress::kDone : Progress::kBlocked; });
}

}  // namespace cohort::comm::testing
