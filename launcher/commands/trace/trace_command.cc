#include "cohort/launcher/commands/trace/trace_command.h"

#include <chrono>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/jobs/job_socket.h"
#include "cohort/launcher/jobs/job_words.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::milliseconds;

constexpr milliseconds kPause{100};
constexpr milliseconds kEndsWithin{15'000};  // beyond the length: the agents' rest, and a slow disk

SubcommandLine TraceLine(std::string* job, std::string* length, std::string* file) {
  return {.name = "trace",
          .summary =
              "Takes a trace of a running job: every call of every rank, for ui.perfetto.dev. The ranks go on. The\n"
              "file is written on the machine of the job's dlaunch. A job's whole trace: dlaunch --trace FILE.",
          .notes =
              "Examples:\n"
              "  dlaunch trace               ten seconds of the only job that runs, to ID.pftrace\n"
              "  dlaunch trace --for 1m 4e   a minute of job-4e0c53a1f2b98d67\n",
          .hint = "dlaunch status lists the jobs of this machine",
          .operand = {"JOB", "The beginning of its digits is enough, and none where one job runs", job},
          .values = {{"--for", "TIME", "How long, such as 500ms or 1m (10)", length},
                     {"--output", "FILE", "Where to write it (the job's id with .pftrace)", file}}};
}

absl::StatusOr<v1::TraceState> Trace(JobConnection* connection, const v1::TraceRequest& trace) {
  v1::JobRequest request;
  request.set_protocol(kJobProtocol);
  *request.mutable_trace() = trace;
  COHORT_ASSIGN_OR_RETURN(const v1::JobSnapshot job, connection->Ask(request, Deadline::After(kAnswerTimeout)));
  if (!job.has_trace()) return absl::UnimplementedError("its dlaunch is older and takes no traces");
  if (!job.trace().refused().empty()) return absl::FailedPreconditionError(job.trace().refused());
  return job.trace();
}

// Asks for it until it has ended, its job has, or the deadline has passed.
absl::StatusOr<v1::TraceState> Follow(JobConnection* connection, v1::TraceState state, Deadline deadline,
                                      const std::function<void()>& on_answer) {
  v1::TraceRequest request;
  request.set_number(state.number());
  while (state.running() && !deadline.passed()) {
    if (connection->WaitForEnd(Deadline::After(kPause))) break;
    const absl::StatusOr<v1::TraceState> next = Trace(connection, request);
    if (absl::IsUnavailable(next.status())) break;
    if (absl::IsDeadlineExceeded(next.status())) continue;  // the trace goes on, and its dlaunch may be stopped
    COHORT_RETURN_IF_ERROR(next.status());
    if (next->number() != state.number()) return absl::UnavailableError("its trace has ended, and another was begun");
    state = *next;
    on_answer();
  }
  return state;
}

}  // namespace

absl::StatusOr<v1::TraceState> TakeTrace(const std::string& job_id, const v1::TraceRequest& wish,
                                         const std::function<void()>& on_answer) {
  COHORT_ASSIGN_OR_RETURN(JobConnection connection, JobConnection::Open(job_id));
  COHORT_ASSIGN_OR_RETURN(const v1::TraceState begun, Trace(&connection, wish));
  on_answer();
  const Deadline deadline = Deadline::After(milliseconds(wish.milliseconds()) + kEndsWithin);
  return Follow(&connection, begun, deadline, on_answer);
}

absl::Status AwaitTrace(const std::string& job_id, const v1::TraceState& trace, milliseconds longest) {
  const Deadline deadline = Deadline::After(longest);
  const auto follow = [&]() -> absl::Status {
    COHORT_ASSIGN_OR_RETURN(JobConnection connection, JobConnection::Open(job_id));
    return Follow(&connection, trace, deadline, [] {}).status();
  };
  const absl::Status followed = follow();
  return absl::IsUnavailable(followed) ? absl::OkStatus() : followed;
}

absl::StatusOr<v1::TraceState> LatestTrace(const std::string& job_id) {
  COHORT_ASSIGN_OR_RETURN(JobConnection connection, JobConnection::Open(job_id));
  return Trace(&connection, v1::TraceRequest());
}

runtime::ManualCommand TraceManual() {
  std::string job, length, file;
  return ManualOf(TraceLine(&job, &length, &file));
}

int RunTraceCommand(const std::vector<std::string>& arguments) {
  std::string job, length = "10", file;
  const absl::Status read = ReadSubcommandLine(arguments, TraceLine(&job, &length, &file));
  if (!read.ok()) return Refuse(read, kExitUsage);
  const absl::StatusOr<milliseconds> time = ReadTime("--for", length);
  if (!time.ok()) return Refuse(time.status(), kExitUsage);
  if (time->count() == 0)
    return Refuse(WithRemedy(Remedy::kTraceTime, "--for 0: a trace takes time; give one such as 500ms"), kExitUsage);
  const absl::StatusOr<std::string> id = FindRunningJob(job);
  if (!id.ok()) return Refuse(id.status(), kExitNoSuchJob);
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(file.empty() ? *id + ".pftrace" : file, error);
  if (error) return Refuse("--output '" + file + "': " + error.message(), kExitUsage);
  v1::TraceRequest request;
  request.set_file(path.string());
  request.set_milliseconds(static_cast<uint64_t>(time->count()));
  request.set_while_asked(true);
  const absl::StatusOr<v1::TraceState> state = TakeTrace(*id, request, [] {});
  if (!state.ok()) return Refuse(Prefixed(*id + ": ", state.status()), kExitNoSuchJob);
  if (!state->problem().empty()) return Refuse(state->problem(), kExitLauncher);
  if (state->running()) return Answer(*id + " has ended; its trace is in " + state->file() + "\n");
  if (state->calls() + state->missed() == 0) {
    Say("the ranks of " + *id +
        " have made no call of Cohort or NCCL meanwhile; dlaunch top shows which of them have joined Cohort, and "
        "dlaunch stacks where they are");
  }
  return Answer(state->summary() + "\n");
}

}  // namespace cohort::launcher
