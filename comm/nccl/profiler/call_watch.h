// Looks after the calls of NCCL that do not move: shows in the segment which of them the rank waits for, and reports
// them to the agent, which compares the calls of all members.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "cohort/comm/nccl/profiler/nccl_recorder.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::comm::nccl_profiler {

// Used by one thread.
class CallWatch {
 public:
  static constexpr std::chrono::milliseconds kShownAfter{100};     // a call runs for so long before its wait is shown
  static constexpr std::chrono::milliseconds kReportedAfter{500};  // and before it is reported
  static constexpr std::chrono::milliseconds kReportEvery{1000};
  static constexpr std::chrono::milliseconds kLongAfter{5000};  // and before somebody is said not to have come

  // Both outlive it.
  CallWatch(runtime::Bootstrap* bootstrap, NcclRecorder* recorder, uint64_t epoch)
      : bootstrap_(*bootstrap), recorder_(*recorder), epoch_(epoch) {}

  // `now_ns`: the steady clock. Does not block.
  void Look(uint64_t now_ns);

 private:
  struct Report {
    uint64_t number = 0;  // of the call
    uint64_t due_ns = 0;  // the next one
  };

  void ReportCall(const NcclRecorder::Running& call, bool for_long);

  runtime::Bootstrap& bootstrap_;
  NcclRecorder& recorder_;
  const uint64_t epoch_;
  std::map<uint64_t, Report> reports_;  // by communicator, of the latest look
};

}  // namespace cohort::comm::nccl_profiler
