// `dlaunch trace`: takes a trace of a job that runs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/manual/command.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

runtime::ManualCommand TraceManual();

int RunTraceCommand(const std::vector<std::string>& arguments);

// Begins a trace of a running job and waits until it is whole, or the job has ended: then `running` is still set.
// `on_answer` is called each time that the job's dlaunch has answered, some times a second. kFailedPrecondition:
// another one is being taken. Otherwise as JobConnection.
absl::StatusOr<v1::TraceState> TakeTrace(const std::string& job_id, const v1::TraceRequest& wish,
                                         const std::function<void()>& on_answer);
// Waits until a trace of a running job has ended, or the job has; for `longest` at the most, whether or not
// its dlaunch answers meanwhile. Errors as JobConnection, but one whose dlaunch has ended has ended well.
absl::Status AwaitTrace(const std::string& job_id, const v1::TraceState& trace, std::chrono::milliseconds longest);
// The latest trace of a running job, which may have ended.
absl::StatusOr<v1::TraceState> LatestTrace(const std::string& job_id);

}  // namespace cohort::launcher
