#include "cohort/launcher/nodes/slurm.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/run_commands.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/nodes/allocation.h"
#include "cohort/launcher/nodes/surroundings/task_counts.h"
#include "cohort/launcher/nodes/surroundings/variables.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/launcher/spawn/srun_command.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::seconds kPatience{2};  // with Slurm's controller, for what only a warning needs

constexpr uint32_t kFirstOwnStep = 0xfffffffa;  // steps that Slurm makes itself: interactive, batch, extern

// Refuses what is no number: tasks could not know which of them runs the job. All could end, and nothing would run.
absl::StatusOr<int> ReadTaskNumber(const char* name, const VariableLookup& variable, int unset, int min, int max) {
  const auto text = variable(name);
  if (!text) return unset;
  if (const auto value = ReadWholeNumber(*text, min, max)) return *value;
  return InvalidArgumentError(Remedy::kSlurmNumber,
                              std::string(name) + " is '" + Printable(*text, 40) + "', and no number from " +
                                  std::to_string(min) + (max == kMaxTasks ? " on" : " to " + std::to_string(max)) +
                                  ", as Slurm sets it; unset what set it, or start dlaunch by srun");
}

// The older name is SLURM_JOBID.
std::string JobOf(const VariableLookup& variable) {
  const std::string job = ValueOf(variable, "SLURM_JOB_ID");
  return job.empty() ? ValueOf(variable, "SLURM_JOBID") : job;
}

// The shell of `srun --pty bash`, whose other tasks have no terminal and end, or that of salloc's interactive step. The
// step's tasks are what it asked for, and not as many dlaunches.
bool IsShellOfStep(const VariableLookup& variable, bool has_terminal) {
  for (const char* name : {"SLURM_PTY_PORT", "SLURM_PTY_WIN_COL", "SLURM_PTY_WIN_ROW"}) {
    if (has_terminal && !ValueOf(variable, name).empty()) return true;
  }
  std::string step = ValueOf(variable, "SLURM_STEP_ID");
  if (step.empty()) step = ValueOf(variable, "SLURM_STEPID");
  uint32_t number = 0;
  return step == "interactive" || step == "batch" || (absl::SimpleAtoi(step, &number) && number >= kFirstOwnStep);
}

// Whether a step of Slurm started this process, or one above it.
bool IsBelowStepDaemon() {
  pid_t pid = ::getppid();
  while (pid > 1) {
    const absl::StatusOr<std::string> stat = ReadTextFile("/proc/" + std::to_string(pid) + "/stat", "");
    const size_t name_end = stat.ok() ? stat->rfind(')') : std::string::npos;
    if (name_end == std::string::npos) return false;
    if (stat->find("(slurmstepd") != std::string::npos) return true;
    std::istringstream fields(stat->substr(name_end + 1));
    std::string state;
    pid = 0;
    fields >> state >> pid;
  }
  return false;
}

// A step that srun starts from such a shell inherits the variables of its terminal, and not the terminal. The shell's
// own step has no terminal either in its other tasks, whose output srun sends to /dev/null.
bool InheritsTerminalVariables() {
  struct stat error{}, null{};
  if (::fstat(STDERR_FILENO, &error) == 0 && ::stat("/dev/null", &null) == 0 && error.st_rdev == null.st_rdev) {
    return false;
  }
  const runtime::FileDescriptor terminal(::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC));
  return terminal.get() < 0 && IsBelowStepDaemon();
}

// SLURM_TASKS_PER_NODE has the node's CPUs where nobody asked for tasks: then they are none.
bool AskedForTasks(const VariableLookup& variable) {
  for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"}) {
    if (!ValueOf(variable, name).empty()) return true;
  }
  return false;
}

// The allocation's tasks on each of its nodes; empty where they are not told for just these.
absl::StatusOr<std::vector<int>> TasksOf(const VariableLookup& variable, size_t nodes) {
  if (!AskedForTasks(variable)) return std::vector<int>();
  if (const std::string list = ValueOf(variable, "SLURM_TASKS_PER_NODE"); !list.empty()) {
    COHORT_ASSIGN_OR_RETURN(std::vector<int> counts, ParseTaskCounts(list, "SLURM_TASKS_PER_NODE"));
    if (counts.size() == nodes) return counts;
  }
  COHORT_ASSIGN_OR_RETURN(const int each, ReadTaskNumber("SLURM_NTASKS_PER_NODE", variable, 0, 1, kMaxTasks));
  if (each > 0) return std::vector<int>(nodes, each);
  const char* const name = ValueOf(variable, "SLURM_NTASKS").empty() ? "SLURM_NPROCS" : "SLURM_NTASKS";
  COHORT_ASSIGN_OR_RETURN(const int tasks, ReadTaskNumber(name, variable, 0, 1, kMaxTasks));
  const auto total = static_cast<size_t>(tasks);
  if (total < nodes) return std::vector<int>();
  std::vector<int> counts(nodes, static_cast<int>(total / nodes));
  for (size_t i = 0; i < total % nodes; ++i) ++counts[i];
  return counts;
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

// Lines for what Slurm's variables say and the job does not have.
void TellOfDifferences(const Options& options, const SlurmNodes& slurm) {
  const std::string listed = std::to_string(slurm.hosts.size());
  const std::string allocated = GetVariable("SLURM_JOB_NUM_NODES").value_or(listed);
  if (!slurm.step && allocated != listed) {
    Say("SLURM_JOB_NUM_NODES is " + allocated + ", and SLURM_JOB_NODELIST names " + listed + ": taking those");
  }
  const std::string list = GetVariable("SLURM_TASKS_PER_NODE").value_or("");
  const bool typed = options.ranks || options.ranks_per_node || options.gpus_per_rank || options.simulate_gpus;
  if (typed || slurm.step) return;
  if (!AskedForTasks(GetVariable)) {
    if (list.empty() || list == "1" || list == "1(x" + listed + ")") return;
    return Say("SLURM_TASKS_PER_NODE is " + list +
               ", the CPUs where no tasks were asked for (SLURM_NTASKS is not set): one rank a node, or one a GPU; "
               "--nproc-per-node gives more");
  }
  const std::optional<int> tasks = ReadWholeNumber(GetVariable("SLURM_NTASKS").value_or(""), 1, kMaxTasks);
  int taken = 0;
  for (const HostEntry& host : slurm.hosts) taken += host.slots.value_or(1);
  if (tasks && *tasks != taken) {
    Say("SLURM_NTASKS is " + std::to_string(*tasks) + ", and the tasks of the nodes together " + std::to_string(taken) +
        ": taking those; -n sets another number");
  }
}

// The variables name the nodes of the first component only.
absl::Status RefuseOtherComponents(const Options& options) {
  for (const char* name : {"SLURM_HET_SIZE", "SLURM_PACK_SIZE"}) {
    const std::string components = GetVariable(name).value_or("");
    if (components.empty() || components == "1" || options.nodes) continue;
    return InvalidArgumentError(Remedy::kSlurmComponents,
                                std::string(name) + " is " + Printable(components, 40) +
                                    ": the nodes of a heterogeneous job's other components can't be reached; give "
                                    "--nnodes N for nodes of the first one, or ask for a job of one component");
  }
  return absl::OkStatus();
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

absl::StatusOr<SlurmNodes> ReadSlurmVariables(const VariableLookup& variable, bool has_terminal) {
  SlurmNodes found;
  COHORT_ASSIGN_OR_RETURN(const int tasks, ReadTaskNumber("SLURM_STEP_NUM_TASKS", variable, 1, 1, kMaxTasks));
  const bool several = tasks > 1;
  found.step = several && !IsShellOfStep(variable, has_terminal);
  const char* name = found.step ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  std::string list = ValueOf(variable, name);
  if (list.empty() && !found.step) list = ValueOf(variable, "SLURM_NODELIST");
  if (list.empty()) {  // on this machine alone it would be another job than was meant
    return InvalidArgumentError(Remedy::kSchedulerShell,
                                std::string(name) +
                                    " is not set, which names the nodes of the Slurm job; run dlaunch in the job's own "
                                    "shell, or on this machine alone with --launcher local");
  }
  COHORT_ASSIGN_OR_RETURN(found.hosts, ParseHostList(list, name));
  const std::string nodes = std::to_string(found.hosts.size());
  if (found.step && static_cast<size_t>(tasks) != found.hosts.size()) {
    return InvalidArgumentError(Remedy::kManyDlaunches,
                                "srun started " + Plural(static_cast<size_t>(tasks), "task") + " on " +
                                    Plural(found.hosts.size(), "node") +
                                    ", each of them a dlaunch; it starts the ranks itself. Use: srun --wait=0 -N " +
                                    nodes + " --ntasks-per-node=1 dlaunch ..., or dlaunch alone in the batch script");
  }
  if (several) {
    COHORT_ASSIGN_OR_RETURN(const int task, ReadTaskNumber("SLURM_PROCID", variable, 0, 0, tasks - 1));
    found.elsewhere = task != 0;
  }
  if (found.step) return found;
  COHORT_ASSIGN_OR_RETURN(const std::vector<int> counts, TasksOf(variable, found.hosts.size()));
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] <= kMaxRanksPerNode) found.hosts[i].slots = counts[i];
  }
  return found;
}

Detection Slurm::Detect(const Options&) const {
  const std::string job = JobOf(GetVariable);
  if (job.empty()) return {false, "SLURM_JOB_ID is not set"};
  const auto tasks = GetVariable("SLURM_STEP_NUM_TASKS");
  return {true, "SLURM_JOB_ID is " + job +
                    (tasks ? ", in a step of " + *tasks + (*tasks == "1" ? " task" : " tasks") : "") +
                    (IsShellOfStep(GetVariable, true) ? ", a shell" : "")};
}

bool Slurm::RunsElsewhere(const Options&) const {
  const absl::StatusOr<SlurmNodes> slurm = ReadSlurmVariables(GetVariable, !InheritsTerminalVariables());
  return slurm.ok() && slurm->elsewhere;
}

absl::StatusOr<JobNodes> Slurm::Find(const Options& options) const {
  COHORT_ASSIGN_OR_RETURN(SlurmNodes slurm, ReadSlurmVariables(GetVariable, !InheritsTerminalVariables()));
  const std::string job = "Slurm job " + JobOf(GetVariable);
  if (slurm.elsewhere) return JobNodes{.source = job, .instead = [] { return 0; }};
  if (!slurm.step) COHORT_RETURN_IF_ERROR(RefuseOtherComponents(options));
  if (slurm.step) WarnOfWaitTime();
  TellOfDifferences(options, slurm);
  return AskAllocation(options,
                       {.name = job,
                        .hosts = std::move(slurm.hosts),
                        .own_name = GetVariable("SLURMD_NODENAME").value_or(""),
                        .program = "srun"},
                       {.spawner = SpawnerKind::kSrun,
                        .command = &SrunCommand,
                        .source = "of " + job,
                        .trial = "srun --overlap --nodes=1 --ntasks=1 --nodelist=HOST true",
                        .slots_are_tasks = true});
}

}  // namespace cohort::launcher
