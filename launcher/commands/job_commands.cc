#include "cohort/launcher/commands/job_commands.h"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/jobs/job_socket.h"
#include "cohort/launcher/jobs/job_words.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kEndSlack{20};  // beyond the grace
constexpr seconds kTellOfWait{1};

std::string DescribeNode(const v1::JobNode& node) {
  const uint32_t last = node.first_rank() + node.rank_count() - 1;
  std::string text = "  " + Printable(node.name()) + ": rank";
  text += node.rank_count() > 1 ? "s " + std::to_string(node.first_rank()) + "-" + std::to_string(last)
                                : " " + std::to_string(node.first_rank());
  return text + (node.agent() == 0 ? ", its agent has ended" : ", agent pid " + std::to_string(node.agent())) + "\n";
}

v1::JobRequest Request() {
  v1::JobRequest request;
  request.set_protocol(kJobProtocol);
  return request;
}

absl::StatusOr<std::string> Describe(const std::string& job_id) {
  COHORT_ASSIGN_OR_RETURN(JobConnection connection, JobConnection::Open(job_id));
  COHORT_ASSIGN_OR_RETURN(const v1::JobSnapshot job, connection.AskForAll(Request()));
  std::string text = Summary(job, connection.pid());
  for (const v1::JobNode& node : job.nodes()) text += DescribeNode(node);
  const std::string spares = DescribeSpares(job);
  return spares.empty() ? text : text + "  " + spares + "\n";
}

// All are asked before the first answer is waited for: those that are silent cost their time once.
std::vector<absl::StatusOr<std::string>> SummariseAll(const std::vector<std::string>& ids) {
  std::vector<absl::StatusOr<JobConnection>> connections;
  for (const std::string& id : ids) {
    connections.push_back(JobConnection::Open(id));
    if (!connections.back().ok()) continue;
    if (const absl::Status sent = connections.back()->Send(Request()); !sent.ok()) connections.back() = sent;
  }
  const Deadline deadline = Deadline::After(kAnswerTimeout);
  std::vector<absl::StatusOr<std::string>> texts;
  for (absl::StatusOr<JobConnection>& connection : connections) {
    const absl::StatusOr<v1::JobSnapshot> status =
        connection.ok() ? connection->Receive(deadline) : absl::StatusOr<v1::JobSnapshot>(connection.status());
    texts.push_back(status.ok() ? Summary(*status, connection->pid()) : absl::StatusOr<std::string>(status.status()));
  }
  return texts;
}

}  // namespace

int RunStatusCommand(const std::vector<std::string>& arguments) {
  std::string job;
  const absl::Status read = ReadSubcommandLine(
      arguments,
      {.use = "dlaunch status [JOB]; without JOB it lists the jobs that run on this machine", .operand = &job});
  if (!read.ok()) return Refuse(read, kExitUsage);
  std::vector<std::string> ids;
  std::vector<absl::StatusOr<std::string>> texts;
  if (job.empty()) {
    ids = RunningJobIds();
    texts = SummariseAll(ids);
  } else {
    const absl::StatusOr<std::string> found = FindRunningJob(job);
    if (!found.ok()) return Refuse(found.status(), kExitNoSuchJob);
    ids = {*found};
    texts = {Describe(*found)};
  }
  int exit_code = 0;
  std::string shown;
  for (size_t i = 0; i < ids.size(); ++i) {
    const absl::StatusOr<std::string>& text = texts[i];
    if (text.ok()) {
      shown += *text;
      continue;
    }
    const absl::Status& why = text.status();
    // In a list others' jobs, and those that end meanwhile, are of no concern.
    if (job.empty() && !absl::IsDeadlineExceeded(why)) continue;
    exit_code = Refuse(ids[i] + ": " + std::string(why.message()), kExitNoSuchJob);
  }
  if (shown.empty() && exit_code == 0) shown = "no job of yours runs on this machine\n";
  if (const int lost = Answer(shown); lost != 0) return lost;
  return exit_code;
}

int RunKillCommand(const std::vector<std::string>& arguments) {
  std::string job;
  bool at_once = false;
  const absl::Status read =
      ReadSubcommandLine(arguments, {.use = "dlaunch kill [--now] JOB; dlaunch status lists the jobs of this machine",
                                     .operand = &job,
                                     .operand_required = true,
                                     .flags = {{"--now", &at_once}}});
  if (!read.ok()) return Refuse(read, kExitUsage);
  const absl::StatusOr<std::string> id = FindRunningJob(job);
  if (!id.ok()) return Refuse(id.status(), kExitNoSuchJob);
  absl::StatusOr<JobConnection> connection = JobConnection::Open(*id);
  if (!connection.ok()) return Refuse(*id + ": " + std::string(connection.status().message()), kExitNoSuchJob);
  v1::JobRequest request = Request();
  request.set_stop(true);
  request.set_at_once(at_once);
  const absl::StatusOr<v1::JobSnapshot> status = connection->Ask(request, Deadline::After(kAnswerTimeout));
  if (!status.ok()) return Refuse(*id + ": " + std::string(status.status().message()), kExitNoSuchJob);
  const milliseconds grace(at_once ? 0 : status->grace_ms());
  if (!at_once && !connection->WaitForEnd(Deadline::After(kTellOfWait))) {
    Say(*id + " is told to end, and may take its grace of " + Age(static_cast<uint64_t>(grace.count())) +
        "; dlaunch kill --now ends it at once");
  }
  if (!connection->WaitForEnd(Deadline::After(grace + kEndSlack))) {
    return Refuse(*id + ": it has been told to end and has not in " +
                      Age(static_cast<uint64_t>((grace + milliseconds(kEndSlack)).count())) +
                      "; dlaunch kill --now ends it without grace",
                  kExitLauncher);
  }
  return Answer(*id + " has ended\n");
}

}  // namespace cohort::launcher
