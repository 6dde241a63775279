#include "cohort/launcher/nodes/node_files.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/nodes/allocation.h"
#include "cohort/launcher/nodes/host_file.h"
#include "cohort/launcher/nodes/ssh_hosts.h"
#include "cohort/launcher/nodes/this_machine.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/launcher/spawn/blaunch_command.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr NodeFileSystem kPbs{"PBS", "PBS_JOBID", "PBS_NODEFILE", nullptr, "PBS_NUM_PPN", false};
constexpr NodeFileSystem kGridEngine{"Grid Engine", nullptr, "PE_HOSTFILE", nullptr, nullptr, true};
constexpr NodeFileSystem kOar{"OAR", "OAR_JOB_ID", "OAR_NODEFILE", "OAR_NODE_FILE", nullptr, false};
constexpr NodeFileSystem kCobalt{"Cobalt", "COBALT_JOBID", "COBALT_NODEFILE", nullptr, nullptr, false};

constexpr const char* kMpiHostFiles[] = {"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile",
                                         "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"};

std::string OwnValue(const char* name) { return name == nullptr ? "" : GetVariable(name).value_or(""); }

// The variable that names the file.
const char* FileVariable(const NodeFileSystem& system) {
  return OwnValue(system.file).empty() && !OwnValue(system.older_file).empty() ? system.older_file : system.file;
}

// Files with one line a host, where another variable tells the tasks.
void TakeTasks(const NodeFileSystem& system, std::vector<HostEntry>* hosts) {
  const std::optional<int> tasks = ReadWholeNumber(OwnValue(system.tasks), 1, kMaxRanksPerNode);
  const bool one_line =
      std::all_of(hosts->begin(), hosts->end(), [](const HostEntry& host) { return host.slots == 1; });
  if (!tasks || !one_line) return;
  for (HostEntry& host : *hosts) host.slots = tasks;
}

// The first of LSF's ways to name the hosts that this job has.
const char* HostsVariableOfLsf() {
  for (const char* name : {"LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", "LSB_HOSTS"}) {
    if (!GetVariable(name).value_or("").empty()) return name;
  }
  return nullptr;
}

absl::StatusOr<std::vector<HostEntry>> ReadHostsOfLsf(const std::string& name) {
  const std::string value = GetVariable(name.c_str()).value_or("");
  if (name == "LSB_MCPU_HOSTS") return ParseHostsAndSlots(value, name);
  std::string lines = absl::StrReplaceAll(value, {{" ", "\n"}});
  if (name == "LSB_DJOB_HOSTFILE") {
    COHORT_ASSIGN_OR_RETURN(lines, ReadTextFile(value, name));
  }
  COHORT_ASSIGN_OR_RETURN(std::vector<HostEntry> hosts, ParseNodeFile(lines, name));
  CountLines(lines, &hosts);
  return hosts;
}

}  // namespace

Pbs::Pbs() : NodeFile(kPbs) {}
GridEngine::GridEngine() : NodeFile(kGridEngine) {}
Oar::Oar() : NodeFile(kOar) {}
Cobalt::Cobalt() : NodeFile(kCobalt) {}

Detection NodeFile::Detect(const Options&) const {
  const std::string job = OwnValue(system_.job);
  const char* const variable = FileVariable(system_);
  const std::string file = OwnValue(variable);
  if (system_.job == nullptr) {
    if (file.empty()) return {false, std::string(variable) + " is not set"};
    return {true, std::string(variable) + " is " + file};
  }
  if (job.empty()) return {false, std::string(system_.job) + " is not set"};
  if (file.empty()) return {true, std::string(system_.job) + " is " + job + ", but " + variable + " is not set"};
  return {true, std::string(system_.job) + " is " + job + ", " + variable + " " + file};
}

absl::StatusOr<JobNodes> NodeFile::Find(const Options& options) const {
  const std::string number = OwnValue(system_.job == nullptr ? "JOB_ID" : system_.job);
  const std::string job = std::string(system_.name) + " job " + (number.empty() ? "?" : number);
  const std::string origin = FileVariable(system_);
  const std::string file = OwnValue(origin.c_str());
  if (file.empty()) {
    return InvalidArgumentError(Remedy::kSchedulerShell,
                                job + ": " + origin +
                                    " is not set, which names its hosts; run dlaunch in the job's own shell, or on "
                                    "this machine alone with --launcher local");
  }
  COHORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, origin));
  std::vector<HostEntry> hosts;
  if (system_.has_columns) {
    COHORT_ASSIGN_OR_RETURN(HostFile found, ParseHostFile(text, origin));
    hosts = std::move(found.hosts);
  } else {
    COHORT_ASSIGN_OR_RETURN(hosts, ParseNodeFile(text, origin));
    CountLines(text, &hosts);
    TakeTasks(system_, &hosts);
  }
  RemoteWay way = SshWay(options, "of " + job + ", by ssh");
  way.slots_are_tasks = true;
  return AskAllocation(options, {.name = job, .hosts = std::move(hosts)}, way);
}

Detection MpiHostFile::Detect(const Options&) const {
  for (const char* name : kMpiHostFiles) {
    if (const std::string file = OwnValue(name); !file.empty()) return {true, std::string(name) + " is " + file};
  }
  return {false, std::string(kMpiHostFiles[0]) + " and its like are not set"};
}

absl::StatusOr<JobNodes> MpiHostFile::Find(const Options& options) const {
  const char* name = kMpiHostFiles[0];
  for (const char* other : kMpiHostFiles) {
    if (!OwnValue(other).empty()) {
      name = other;
      break;
    }
  }
  const std::string origin = std::string(name) + " " + OwnValue(name);
  absl::StatusOr<std::string> text = ReadTextFile(OwnValue(name), name);
  if (!text.ok()) {
    return InvalidArgumentError(Remedy::kLocalInstead,
                                std::string(text.status().message()) + "; unset " + name +
                                    ", or give --launcher local for a job of this machine alone");
  }
  // The file that Open MPI installs has comments alone, and means this machine.
  const bool names_hosts = [&] {
    for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
      const absl::string_view words = absl::StripAsciiWhitespace(line);
      if (!words.empty() && words.front() != '#') return true;
    }
    return false;
  }();
  if (!names_hosts) return ThisMachine().Find(options);
  COHORT_ASSIGN_OR_RETURN(HostFile file, ParseHostFile(*text, origin));
  return AskAllocation(options, {.name = origin, .hosts = std::move(file.hosts)},
                       SshWay(options, "of " + origin + ", by ssh"));
}

absl::StatusOr<std::vector<HostEntry>> ParseHostsAndSlots(const std::string& text, const std::string& origin) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  std::string lines;
  for (size_t i = 0; i < words.size(); i += 2) {
    const std::optional<int> slots =
        i + 1 < words.size() ? ReadWholeNumber(words[i + 1], 1, kMaxRanksPerNode) : std::nullopt;
    if (!slots) {
      return absl::InvalidArgumentError(origin + " is '" + Printable(text, 80) +
                                        "', and no list of hosts and their slots such as: h1 4 h2 4");
    }
    for (int slot = 0; slot < *slots; ++slot) lines += words[i] + "\n";
  }
  COHORT_ASSIGN_OR_RETURN(std::vector<HostEntry> hosts, ParseNodeFile(lines, origin));
  CountLines(lines, &hosts);
  return hosts;
}

Detection Lsf::Detect(const Options&) const {
  const auto job = GetVariable("LSB_JOBID");
  if (!job || job->empty()) return {false, "LSB_JOBID is not set"};
  const char* const hosts = HostsVariableOfLsf();
  if (hosts == nullptr) return {true, "LSB_JOBID is " + *job + ", but LSB_DJOB_HOSTFILE is not set"};
  return {true, "LSB_JOBID is " + *job + ", " + hosts + " " + GetVariable(hosts).value_or("")};
}

absl::StatusOr<JobNodes> Lsf::Find(const Options& options) const {
  const std::string job = "LSF job " + GetVariable("LSB_JOBID").value_or("?");
  const char* const name = HostsVariableOfLsf();
  if (name == nullptr) {  // on this machine alone it would be another job than was meant
    return InvalidArgumentError(Remedy::kSchedulerShell, job +
                                                             ": LSB_DJOB_HOSTFILE is not set, which names its hosts; "
                                                             "run dlaunch in the job's own shell, or on this machine "
                                                             "alone with --launcher local");
  }
  COHORT_ASSIGN_OR_RETURN(std::vector<HostEntry> hosts, ReadHostsOfLsf(name));
  return AskAllocation(options, {.name = job, .hosts = std::move(hosts), .program = "blaunch"},
                       {.spawner = SpawnerKind::kBlaunch,
                        .command = &BlaunchCommand,
                        .source = "of " + job,
                        .trial = "blaunch HOST true",
                        .slots_are_tasks = true});
}

}  // namespace cohort::launcher
