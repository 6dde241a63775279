#include "cohort/launcher/agent/spawned_world.h"

#include <algorithm>
#include <csignal>
#include <string_view>

#include "cohort/launcher/machine/program.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

std::string_view NameIn(std::string_view variable) { return variable.substr(0, variable.find('=') + 1); }

// The value of the last variable of that name ("PATH="), which wins.
std::string ValueOf(const std::vector<std::string>& environment, std::string_view name) {
  std::string value;
  for (const std::string& variable : environment) {
    if (variable.starts_with(name)) value = variable.substr(name.size());
  }
  return value;
}

// Variables by which the asking rank finds its own world. PMIX_MCA_ are settings of the user's.
bool IsOfAskersWorld(const std::string& variable) {
  return variable.starts_with("PMI_") || variable.starts_with("MPI_LOCAL") ||
         (variable.starts_with("PMIX_") && !variable.starts_with("PMIX_MCA_"));
}

// Later ones win.
std::vector<std::string> Merged(const std::vector<std::string>& first, const std::vector<std::string>& second) {
  std::vector<std::string> merged;
  for (const std::string& variable : first) {
    const bool replaced = std::any_of(second.begin(), second.end(),
                                      [&](const std::string& its) { return NameIn(its) == NameIn(variable); });
    if (!replaced) merged.push_back(variable);
  }
  merged.insert(merged.end(), second.begin(), second.end());
  return merged;
}

std::string Absolute(const std::string& directory, const std::string& base) {
  if (directory.empty()) return base;
  return directory.starts_with('/') ? directory : base + "/" + directory;
}

}  // namespace

void SpawnedWorld::MakeAssignment(const v1::Assignment& askers, MpiWay way, const SpawnRequest& request) {
  v1::JobSpec& job = *assignment.mutable_job();
  job = askers.job();
  job.set_job_id(askers.job().job_id() + "-" + std::to_string(askers.epoch()) + "." +
                 std::to_string(askers.placement().node()) + "." + std::to_string(number));
  job.set_serves_pmi1(way == MpiWay::kPmi1);
  job.set_pmix(way == MpiWay::kPmix ? v1::JobSpec::PMIX_REQUIRED : v1::JobSpec::PMIX_NONE);
  job.clear_programs();
  uint32_t count = 0;
  for (const SpawnedProgram& program : request.programs) {
    v1::RankSpan& span = *job.add_programs()->add_ranks();
    span.set_first(count);
    count += static_cast<uint32_t>(program.count);
    span.set_last(count - 1);
  }
  assignment.set_epoch(1);
  assignment.set_world_size(count);
  v1::Node& one = *assignment.add_nodes();
  one.set_name(askers.nodes(static_cast<int>(askers.placement().node())).name());
  one.set_rank_count(count);
  for (uint32_t i = 0; i < count; ++i) {
    v1::RankPlacement& rank = *assignment.mutable_placement()->add_ranks();
    rank.set_rank(i);
    rank.set_local_rank(i);
  }
  name = MpiService::WorldOf(assignment);
}

absl::Status SpawnedWorld::MakeCommands(const SpawnRequest& request, std::vector<std::string> environment, int cgroup) {
  std::erase_if(environment, IsOfAskersWorld);
  const std::string search = ValueOf(environment, "PATH=");
  for (const SpawnedProgram& program : request.programs) {
    const std::string directory = Absolute(program.directory, assignment.job().working_directory());
    COHORT_ASSIGN_OR_RETURN(
        const Program found,
        FindProgram(program.argv[0], program.path.empty() ? search : program.path + ":" + search, directory, ""));
    const std::vector<std::string> its = Merged(environment, program.environment);
    for (int i = 0; i < program.count; ++i) {
      const auto index = static_cast<int>(processes.size());
      RankCommand& command = processes.emplace_back().command;
      command.argv = program.argv;
      command.path = found.path;
      command.environment = Merged(its, mpi->EnvironmentOf(index));
      command.working_directory = directory;
      command.inherited = mpi->InheritedBy(index);
      command.local_rank = asker.local_rank;
      command.cgroup = cgroup;
    }
  }
  return absl::OkStatus();
}

std::string SpawnedWorld::NameOf(size_t index) const {
  const Process& process = processes[index];
  return "process " + std::to_string(index) + " of " + std::to_string(processes.size()) + " that " + asker_name +
         " has spawned (" + process.command.argv[0] + ", pid " + std::to_string(process.process.pid) + ")";
}

std::optional<size_t> SpawnedWorld::FirstLiving() const {
  const auto found =
      std::find_if(processes.begin(), processes.end(), [](const Process& process) { return process.lives; });
  if (found == processes.end()) return std::nullopt;
  return static_cast<size_t>(found - processes.begin());
}

int SpawnedWorld::living() const {
  return static_cast<int>(
      std::count_if(processes.begin(), processes.end(), [](const Process& process) { return process.lives; }));
}

void SpawnedWorld::Kill() {
  for (Process& process : processes) {
    process.told = true;
    if (!process.lives) continue;
    ::kill(-process.process.pid, SIGKILL);
    ::kill(process.process.pid, SIGKILL);  // it may not have a group of its own yet
  }
}

}  // namespace cohort::launcher
