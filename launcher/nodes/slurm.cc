#include "cohort/launcher/nodes/slurm.h"

#include <chrono>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/run_commands.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/nodes/remote_hosts.h"
#include "cohort/launcher/spawn/srun_command.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::seconds kPatience{2};  // with Slurm's controller, for what only a warning needs

constexpr int kMaxTasks = 1 << 24;  // more than Slurm starts in a step

// Refuses what is no number: tasks could not know which of them runs the job. All could end, and nothing would run.
absl::StatusOr<int> ReadNumber(const char* name, const VariableLookup& variable, int unset, int min, int max) {
  const auto text = variable(name);
  if (!text) return unset;
  if (const auto value = ReadWholeNumber(*text, min, max)) return *value;
  return absl::InvalidArgumentError(std::string(name) + " is '" + Printable(*text, 40) + "', and no number from " +
                                    std::to_string(min) + (max == kMaxTasks ? " on" : " to " + std::to_string(max)) +
                                    ", as Slurm sets it; unset what set it, or start dlaunch by srun");
}

// Empty where nobody says.
std::string WaitTime() {
  const auto set_for_srun = GetVariable("SLURM_WAIT");
  if (set_for_srun) return *set_for_srun;
  return WaitTimeIn(RunCommands({{"scontrol", "show", "config"}}, {.limit = kPatience})[0].output);
}

// The other tasks have nothing to do and end. srun, told to wait for so long after the first end of a task, then kills
// this one in the middle of the job. Whether it was told otherwise by --wait, tasks can't know.
void WarnOfWaitTime() {
  const std::string seconds = WaitTime();
  if (seconds.empty() || seconds.find_first_not_of('0') == std::string::npos) return;
  Say("Slurm's WaitTime is " + seconds +
      " s: that long after its other tasks, which end at once, srun kills this job, unless it was given --wait=0. Use: "
      "srun --wait=0 ..., or dlaunch alone in the batch script");
}

}  // namespace

std::string WaitTimeIn(const std::string& configuration) {
  std::istringstream lines(configuration);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, equals, seconds;
    if (words >> name >> equals >> seconds && name == "WaitTime" && equals == "=") return seconds;
  }
  return "";
}

absl::StatusOr<SlurmNodes> ReadSlurmVariables(const VariableLookup& variable) {
  SlurmNodes found;
  COHORT_ASSIGN_OR_RETURN(const int tasks, ReadNumber("SLURM_STEP_NUM_TASKS", variable, 1, 1, kMaxTasks));
  const bool several = tasks > 1;
  const char* name = several ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const std::string list = variable(name).value_or("");
  if (list.empty()) {  // on this machine alone it would be another job than was meant
    return absl::InvalidArgumentError(
        std::string(name) +
        " is not set, which names the nodes of the Slurm job; run dlaunch in the job's own "
        "shell, or on this machine alone with --launcher local");
  }
  COHORT_ASSIGN_OR_RETURN(found.hosts, ParseHostList(list, name));
  if (!several) return found;
  const std::string nodes = std::to_string(found.hosts.size());
  if (static_cast<size_t>(tasks) != found.hosts.size()) {
    return absl::InvalidArgumentError(
        "srun started " + std::to_string(tasks) + " tasks on " + nodes +
        " nodes, each of them a dlaunch; it starts the ranks itself. Use: srun --wait=0 -N " + nodes +
        " --ntasks-per-node=1 dlaunch ..., or dlaunch alone in the batch script");
  }
  COHORT_ASSIGN_OR_RETURN(const int task, ReadNumber("SLURM_PROCID", variable, 0, 0, tasks - 1));
  found.elsewhere = task != 0;
  return found;
}

Detection Slurm::Detect(const Options&) const {
  const auto job = GetVariable("SLURM_JOB_ID");
  if (!job || job->empty()) return {false, "SLURM_JOB_ID is not set"};
  const auto tasks = GetVariable("SLURM_STEP_NUM_TASKS");
  return {true,
          "SLURM_JOB_ID is " + *job + (tasks ? ", in a step of " + *tasks + (*tasks == "1" ? " task" : " tasks") : "")};
}

bool Slurm::RunsElsewhere(const Options&) const {
  const absl::StatusOr<SlurmNodes> slurm = ReadSlurmVariables(GetVariable);
  return slurm.ok() && slurm->elsewhere;
}

absl::StatusOr<JobNodes> Slurm::Find(const Options& options) const {
  COHORT_ASSIGN_OR_RETURN(SlurmNodes slurm, ReadSlurmVariables(GetVariable));
  const std::string job = GetVariable("SLURM_JOB_ID").value_or("?");
  if (slurm.elsewhere) return JobNodes{.source = "Slurm job " + job, .instead = [] { return 0; }};
  const std::string listed = std::to_string(slurm.hosts.size());
  const std::string allocated = GetVariable("SLURM_JOB_NUM_NODES").value_or(listed);
  const bool step = GetVariable("SLURM_STEP_NUM_TASKS").value_or("1") != "1";
  if (step) WarnOfWaitTime();
  if (!step && allocated != listed) {
    Say("SLURM_JOB_NUM_NODES is " + allocated + ", and SLURM_JOB_NODELIST names " + listed + ": taking those");
  }
  COHORT_ASSIGN_OR_RETURN(slurm.hosts, FirstHosts(std::move(slurm.hosts), options, "Slurm job " + job));
  return AskHosts(options, slurm.hosts,
                  {.spawner = "srun",
                   .command = &SrunCommand,
                   .source = "of Slurm job " + job,
                   .trial = "srun --overlap --nodes=1 --ntasks=1 --nodelist=HOST true"});
}

}  // namespace cohort::launcher
