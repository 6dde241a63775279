// Communicators of several threads: a call that waits for other ranks, as the first one on CUDA memory and those that
// go through host memory do, holds up no other thread.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/engine/engine.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {
namespace {

using std::chrono::seconds;
using testing::ProcessRank;
using testing::RunProcesses;

// Tells when a certain thread drives the engine: it waits for something then.
class Watch : public runtime::ProgressSource {
 public:
  explicit Watch(runtime::Engine& engine) : engine_(engine) {
    const runtime::EngineLock lock(engine_);
    engine_.Add(this);
  }
  ~Watch() override {
    const runtime::EngineLock lock(engine_);
    engine_.Remove(this);
  }
  // The calling thread is the one.
  void Expect() {
    const runtime::MutexLock lock(mutex_);
    expected_ = std::this_thread::get_id();
  }
  bool Await(seconds limit) {
    const runtime::Deadline deadline = runtime::Deadline::After(limit);
    const runtime::MutexLock lock(mutex_);
    while (!seen_ && changed_.Wait(mutex_, deadline)) continue;
    return seen_;
  }

 private:
  bool Poll() override {
    const runtime::MutexLock lock(mutex_);
    if (std::this_thread::get_id() != expected_ || seen_) return false;
    seen_ = true;
    changed_.NotifyAll();
    return false;
  }
  bool Active() const override { return false; }

  runtime::Engine& engine_;
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::thread::id expected_ COHORT_GUARDED_BY(mutex_);
  bool seen_ COHORT_GUARDED_BY(mutex_) = false;
};

void UseTheFake(const ProcessRank& self) {
  // Without NCCL on rank 1 all goes through host memory: the fake's ranks can't be processes.
  setenv("COHORT_NCCL_LIBRARY", self.rank == 1 ? "/nowhere/libnccl.so.2" : COHORT_FAKE_NCCL, 1);
  setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
}

CallOptions Within(seconds timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}

absl::Status Sum(Communicator& group, seconds timeout) {
  float value = 1;
  const Buffer buffer(&value, 1, DataType::kFloat32, MemoryKind::kCuda, 0);
  const absl::Status status = group.AllReduce(buffer, buffer, ReduceOp::kSum, Within(timeout)).Wait();
  if (status.ok() && value != static_cast<float>(group.size())) return absl::InternalError("a wrong sum");
  return status;
}

// Runs `call` in a thread of its own, and `meanwhile` once it waits; what was wrong.
std::string While(ProcessRank& self, const std::function<absl::Status()>& call,
                  const std::function<std::string()>& meanwhile) {
  Watch watch(self.runtime->engine());
  absl::Status status;
  std::thread thread([&] {
    watch.Expect();
    status = call();
  });
  std::string problem = watch.Await(seconds(20)) ? meanwhile() : "the call did not wait";
  thread.join();
  return problem.empty() && !status.ok() ? "the call that waited: " + status.ToString() : problem;
}

TEST(NcclThreadsTest, ACallThatWaitsHoldsUpNoOtherThread) {
  const auto results = RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    UseTheFake(self);
    auto x = self.world->Duplicate(), y = self.world->Duplicate();
    if (!x.ok() || !y.ok()) return "no groups";
    for (const char* what : {"the first call: ", "a staged call: "}) {
      const auto meanwhile = [&]() -> std::string {
        if (!(*x)->status().ok()) return "x: " + (*x)->status().ToString();
        const absl::Status status = (*y)->Barrier(Within(seconds(8))).Wait();
        return status.ok() ? "" : "y: " + status.ToString();
      };
      std::string problem;
      if (self.rank == 0) {
        problem = While(self, [&] { return Sum(**x, seconds(10)); }, meanwhile);
      } else {
        problem = meanwhile();
        const absl::Status status = Sum(**x, seconds(10));
        if (problem.empty() && !status.ok()) problem = status.ToString();
      }
      if (!problem.empty()) return what + problem;
    }
    return "";
  });
  for (const auto& result : results) EXPECT_EQ(result.text, "");
}

TEST(NcclThreadsTest, AWaitingCallMayBeAbortedByAnotherThread) {
  const auto results = RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    UseTheFake(self);
    std::string problem;
    if (self.rank == 0) {
      problem = While(
          self, [&] { return Sum(*self.world, seconds(30)); },
          [&]() -> std::string {
            self.world->Abort("a test");
            return "";
          });
      if (problem.find("aborted the group: a test") == std::string::npos) return "not aborted: " + problem;
    }
    return self.meet("done", self.size) ? "" : "not met";
  });
  for (const auto& result : results) EXPECT_EQ(result.text, "");
}

}  // namespace
}  // namespace cohort::comm
