// `dlaunch trace`: takes a trace of a job that runs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/manual/command.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

runtime::ManualCommand TraceManual();

int RunTraceCommand(const std::vector<std::string>& arguments);

// Begins a trace of a running job and waits until it is whole, or the job has ended: then `running` is still set.
// kFailedPrecondition: another one is being taken. Otherwise as JobConnection.
absl::StatusOr<v1::TraceState> TakeTrace(const std::string& job_id, const v1::TraceRequest& wish);
// The latest trace of a running job, which may have ended.
absl::StatusOr<v1::TraceState> LatestTrace(const std::string& job_id);

}  // namespace cohort::launcher
