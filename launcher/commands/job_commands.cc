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
#include "cohort/launcher/commands/job_json.h"
#include "cohort/launcher/jobs/job_socket.h"
#include "cohort/launcher/jobs/job_words.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/launcher/remedies/remedies.h"
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

// A job as its dlaunch has answered.
struct Told {
  v1::JobSnapshot job;
  pid_t pid = 0;
  bool whole = false;  // with all nodes
};

std::string TextOf(const Told& told) {
  std::string text = Summary(told.job, told.pid);
  if (!told.whole) return text;
  for (const v1::JobNode& node : told.job.nodes()) text += DescribeNode(node);
  const std::string spares = DescribeSpares(told.job);
  return spares.empty() ? text : text + "  " + spares + "\n";
}

absl::StatusOr<Told> AskWhole(const std::string& job_id) {
  COHORT_ASSIGN_OR_RETURN(JobConnection connection, JobConnection::Open(job_id));
  COHORT_ASSIGN_OR_RETURN(v1::JobSnapshot job, connection.AskForAll(Request()));
  return Told{std::move(job), connection.pid(), true};
}

// All are asked before the first answer is waited for: those that are silent cost their time once.
std::vector<absl::StatusOr<Told>> AskAll(const std::vector<std::string>& ids) {
  std::vector<absl::StatusOr<JobConnection>> connections;
  for (const std::string& id : ids) {
    connections.push_back(JobConnection::Open(id));
    if (!connections.back().ok()) continue;
    if (const absl::Status sent = connections.back()->Send(Request()); !sent.ok()) connections.back() = sent;
  }
  const Deadline deadline = Deadline::After(kAnswerTimeout);
  std::vector<absl::StatusOr<Told>> told;
  for (absl::StatusOr<JobConnection>& connection : connections) {
    absl::StatusOr<v1::JobSnapshot> status =
        connection.ok() ? connection->Receive(deadline) : absl::StatusOr<v1::JobSnapshot>(connection.status());
    told.push_back(status.ok() ? absl::StatusOr<Told>(Told{*std::move(status), connection->pid()})
                               : absl::StatusOr<Told>(status.status()));
  }
  return told;
}

SubcommandLine StatusLine(std::string* job, bool* json) {
  return {.name = "status",
          .summary =
              "Lists the running jobs that were started on this machine; with JOB that one, its command, and its\n"
              "nodes with their ranks and the pid of each one's agent. What the ranks do: dlaunch top.",
          .notes =
              "Examples:\n"
              "  dlaunch status       all jobs, a line each\n"
              "  dlaunch status 4e    the nodes of job-4e0c53a1f2b98d67\n",
          .hint = "without JOB it lists the jobs that run on this machine",
          .operand = {"JOB", "The beginning of its digits is enough, as in job-4e or 4e", job},
          .flags = {{"--json", "Print JSON (schemas/status.schema.json)", json}}};
}

SubcommandLine KillLine(std::string* job, bool* at_once) {
  return {.name = "kill",
          .summary = "Ends a job of this machine in order, within its grace.",
          .notes =
              "Examples:\n"
              "  dlaunch kill 4e          SIGTERM to the ranks of job-4e0c53a1f2b98d67, SIGKILL after its --grace\n"
              "  dlaunch kill --now 4e    if it does not end\n",
          .hint = "dlaunch status lists the jobs of this machine",
          .operand = {"JOB", "The beginning of its digits is enough", job, true},
          .flags = {{"--now", "Kill its ranks at once", at_once}}};
}

}  // namespace

runtime::ManualCommand StatusManual() {
  std::string job;
  bool json = false;
  return ManualOf(StatusLine(&job, &json));
}

runtime::ManualCommand KillManual() {
  std::string job;
  bool at_once = false;
  return ManualOf(KillLine(&job, &at_once));
}

int RunStatusCommand(const std::vector<std::string>& arguments) {
  std::string job;
  bool json = false;
  const absl::Status read = ReadSubcommandLine(arguments, StatusLine(&job, &json));
  if (!read.ok()) return Refuse(read, kExitUsage);
  std::vector<std::string> ids;
  std::vector<absl::StatusOr<Told>> told;
  if (job.empty()) {
    ids = RunningJobIds();
    told = AskAll(ids);
  } else {
    const absl::StatusOr<std::string> found = FindRunningJob(job);
    if (!found.ok()) return Refuse(found.status(), kExitNoSuchJob);
    ids = {*found};
    told = {AskWhole(*found)};
  }
  int exit_code = 0;
  std::string shown;
  std::vector<Json> described;
  std::vector<std::pair<std::string, std::string>> silent;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (told[i].ok()) {
      shown += TextOf(*told[i]);
      described.push_back(JobJson(told[i]->job, told[i]->pid, told[i]->whole));
      continue;
    }
    const absl::Status& why = told[i].status();
    // In a list others' jobs, and those that end meanwhile, are of no concern.
    if (job.empty() && !absl::IsDeadlineExceeded(why)) continue;
    exit_code = Refuse(Prefixed(ids[i] + ": ", why), kExitNoSuchJob);
    silent.emplace_back(ids[i], std::string(why.message()));
  }
  if (json) shown = StatusJson(described, silent);
  if (shown.empty() && exit_code == 0) shown = "no job of yours runs on this machine\n";
  if (const int lost = Answer(shown); lost != 0) return lost;
  return exit_code;
}

int RunKillCommand(const std::vector<std::string>& arguments) {
  std::string job;
  bool at_once = false;
  const absl::Status read = ReadSubcommandLine(arguments, KillLine(&job, &at_once));
  if (!read.ok()) return Refuse(read, kExitUsage);
  const absl::StatusOr<std::string> id = FindRunningJob(job);
  if (!id.ok()) return Refuse(id.status(), kExitNoSuchJob);
  absl::StatusOr<JobConnection> connection = JobConnection::Open(*id);
  if (!connection.ok()) return Refuse(Prefixed(*id + ": ", connection.status()), kExitNoSuchJob);
  v1::JobRequest request = Request();
  request.set_stop(true);
  request.set_at_once(at_once);
  const absl::StatusOr<v1::JobSnapshot> status = connection->Ask(request, Deadline::After(kAnswerTimeout));
  if (!status.ok()) return Refuse(Prefixed(*id + ": ", status.status()), kExitNoSuchJob);
  const milliseconds grace(at_once ? 0 : status->grace_ms());
  if (!at_once && !connection->WaitForEnd(Deadline::After(kTellOfWait))) {
    Say(*id + " is told to end, and may take its grace of " + Age(static_cast<uint64_t>(grace.count())) +
        "; dlaunch kill --now ends it at once");
  }
  if (!connection->WaitForEnd(Deadline::After(grace + kEndSlack))) {
    const std::string waited = Age(static_cast<uint64_t>((grace + milliseconds(kEndSlack)).count()));
    return Refuse(WithRemedy(Remedy::kJobNotEnded, *id + ": it has been told to end and has not in " + waited +
                                                       "; dlaunch kill --now ends it without grace"),
                  kExitLauncher);
  }
  return Answer(*id + " has ended\n");
}

}  // namespace cohort::launcher
