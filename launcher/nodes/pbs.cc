#include "cohort/launcher/nodes/pbs.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/nodes/remote_hosts.h"
#include "cohort/launcher/nodes/ssh_hosts.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {

Detection Pbs::Detect(const Options&) const {
  const auto job = GetVariable("PBS_JOBID");
  if (!job || job->empty()) return {false, "PBS_JOBID is not set"};
  const auto file = GetVariable("PBS_NODEFILE");
  if (!file || file->empty()) return {true, "PBS_JOBID is " + *job + ", but PBS_NODEFILE is not set"};
  return {true, "PBS_JOBID is " + *job + ", PBS_NODEFILE " + *file};
}

absl::StatusOr<JobNodes> Pbs::Find(const Options& options) const {
  const std::string job = "PBS job " + GetVariable("PBS_JOBID").value_or("?");
  // On this machine alone it would be another job than was meant.
  if (GetVariable("PBS_NODEFILE").value_or("").empty()) {
    return absl::InvalidArgumentError(
        job +
        ": PBS_NODEFILE is not set, which names its hosts; run dlaunch in the job's own shell, or on this machine "
        "alone with --launcher local");
  }
  COHORT_ASSIGN_OR_RETURN(const std::string text,
                          ReadTextFile(GetVariable("PBS_NODEFILE").value_or(""), "PBS_NODEFILE"));
  COHORT_ASSIGN_OR_RETURN(std::vector<HostEntry> hosts, ParseNodeFile(text, "PBS_NODEFILE"));
  COHORT_ASSIGN_OR_RETURN(hosts, FirstHosts(std::move(hosts), options, job));
  return AskHosts(options, hosts, SshWay(options, "of " + job + ", by ssh"));
}

}  // namespace cohort::launcher
