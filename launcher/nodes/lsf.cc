#include "cohort/launcher/nodes/lsf.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/nodes/remote_hosts.h"
#include "cohort/launcher/spawn/blaunch_command.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {

Detection Lsf::Detect(const Options&) const {
  const auto job = GetVariable("LSB_JOBID");
  if (!job || job->empty()) return {false, "LSB_JOBID is not set"};
  const auto file = GetVariable("LSB_DJOB_HOSTFILE");
  if (!file || file->empty()) return {true, "LSB_JOBID is " + *job + ", but LSB_DJOB_HOSTFILE is not set"};
  return {true, "LSB_JOBID is " + *job + ", LSB_DJOB_HOSTFILE " + *file};
}

absl::StatusOr<JobNodes> Lsf::Find(const Options& options) const {
  const std::string job = "LSF job " + GetVariable("LSB_JOBID").value_or("?");
  // On this machine alone it would be another job than was meant.
  if (GetVariable("LSB_DJOB_HOSTFILE").value_or("").empty()) {
    return absl::InvalidArgumentError(
        job +
        ": LSB_DJOB_HOSTFILE is not set, which names its hosts; run dlaunch in the job's own shell, or on this machine "
        "alone with --launcher local");
  }
  COHORT_ASSIGN_OR_RETURN(const std::string text,
                          ReadTextFile(GetVariable("LSB_DJOB_HOSTFILE").value_or(""), "LSB_DJOB_HOSTFILE"));
  COHORT_ASSIGN_OR_RETURN(std::vector<HostEntry> hosts, ParseNodeFile(text, "LSB_DJOB_HOSTFILE"));
  COHORT_ASSIGN_OR_RETURN(hosts, FirstHosts(std::move(hosts), options, job));
  return AskHosts(
      options, hosts,
      {.spawner = "blaunch", .command = &BlaunchCommand, .source = "of " + job, .trial = "blaunch HOST true"});
}

}  // namespace cohort::launcher
