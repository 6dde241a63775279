// This process' part in the job: the connection to the agent, the recorder, and the thread that looks after the calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "cohort/comm/nccl/profiler/call_watch.h"
#include "cohort/comm/nccl/profiler/communicator_members.h"
#include "cohort/comm/nccl/profiler/nccl_recorder.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::comm::nccl_profiler {

// Lives until the process ends, since nobody says when NCCL is done.
class Recording {
 public:
  static constexpr std::chrono::milliseconds kJoinWithin{2000};
  static constexpr std::chrono::milliseconds kLookEvery{100};
  static constexpr std::chrono::milliseconds kAskFor{50};  // at a time; see kRecorderPatience of the bootstrap
  static constexpr std::chrono::milliseconds kStopWithin{500};

  // Joins as the rank that the environment names. Blocks for kJoinWithin at most. Null where there is nothing to
  // record:
  // - no agent has started this process,
  // - the rank's calls are recorded already: Cohort is in this process, or another process of the rank has joined.
  static absl::StatusOr<Recording*> Begin();

  // Stops the thread, which must not run while the process takes down what it uses. Returns when it has stopped: it
  // waits for its agent for kAskFor at most, and is woken from any other wait. False: it has not stopped within
  // kStopWithin.
  bool Stop();

  NcclRecorder& recorder() { return recorder_; }
  // Whether this is a forked child of the process that it belongs to.
  bool InChild() const { return forks_.InChild(); }

 private:
  Recording(std::unique_ptr<runtime::Bootstrap> bootstrap, runtime::Bootstrap::Joined joined);
  void Watch();

  enum class Life : uint8_t { kWatching, kStopping, kStopped };

  const std::unique_ptr<runtime::Bootstrap> bootstrap_;
  const runtime::Bootstrap::Joined joined_;
  NcclRecorder recorder_;
  CommunicatorMembers members_;
  CallWatch watch_;
  const runtime::ForkWatch forks_;
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  Life life_ COHORT_GUARDED_BY(mutex_) = Life::kWatching;
  std::thread thread_;  // runs until Stop
};

}  // namespace cohort::comm::nccl_profiler
