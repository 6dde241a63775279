#include "cohort/launcher/environment/process_environment.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <string_view>

#include "cohort/launcher/environment/cuda_devices.h"

extern char** environ;

namespace cohort::launcher {
namespace {

// See HideVariables; never destroyed, since it is read until the end.
std::vector<std::string>& Hidden() {
  static auto* const hidden = new std::vector<std::string>();
  return *hidden;
}

// What other launchers tell their processes: a program that finds it would take itself for a rank of theirs.
bool BelongsToAnotherLauncher(std::string_view name) {
  static constexpr std::string_view kNames[] = {"SLURM_PROCID",
                                                "SLURM_LOCALID",
                                                "SLURM_NODEID",
                                                "SLURM_NTASKS",
                                                "SLURM_NPROCS",
                                                "SLURM_STEP_NUM_TASKS",
                                                "SLURM_TASKS_PER_NODE",
                                                "SLURM_NTASKS_PER_NODE",
                                                "SLURM_STEP_TASKS_PER_NODE",
                                                "MPI_LOCALRANKID",
                                                "MPI_LOCALNRANKS",
                                                "ROLE_RANK",
                                                "ROLE_WORLD_SIZE",
                                                "ROLE_NAME"};
  if (IsRankVariable(name)) return true;
  for (const std::string_view known : kNames) {
    if (name == known) return true;
  }
  if (name.starts_with("OMPI_MCA_")) return false;  // the user's own tuning
  for (const std::string_view prefix : {"OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "COHORT_AGENT"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

bool BelongsToThisHost(std::string_view name) {
  static constexpr std::string_view kNames[] = {"_",
                                                "CUDA_VISIBLE_DEVICES",
                                                "DISPLAY",
                                                "HOME",
                                                "HOSTNAME",
                                                "JOB_COMPLETION_INDEX",
                                                "LOGNAME",
                                                "LWS_WORKER_INDEX",
                                                "MAIL",
                                                "OLDPWD",
                                                "POD_IP",
                                                "POD_NAME",
                                                "PWD",
                                                "SHELL",
                                                "SHLVL",
                                                "TEMP",
                                                "TMP",
                                                "TMPDIR",
                                                "TTY",
                                                "USER",
                                                "WAYLAND_DISPLAY"};
  for (const std::string_view known : kNames) {
    if (name == known) return true;
  }
  for (const std::string_view prefix : {"BASH_FUNC_", "DBUS_", "SSH_", "XDG_", "SLURM_", "SLURMD_"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

bool IsNamed(std::string_view name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return pattern.ends_with('*') ? name.starts_with(std::string_view(pattern).substr(0, pattern.size() - 1))
                                  : name == pattern;
  });
}

}  // namespace

bool IsRankVariable(std::string_view name) {
  static constexpr std::string_view kRankVariables[] = {"RANK",        "WORLD_SIZE",       "LOCAL_RANK",
                                                        "GROUP_RANK",  "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
                                                        "MASTER_ADDR", "MASTER_PORT",      "NODE_RANK"};
  return std::find(std::begin(kRankVariables), std::end(kRankVariables), name) != std::end(kRankVariables);
}

std::optional<std::string> GetVariable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

void HideVariables(std::string_view prefix) {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with(prefix)) continue;
    Hidden().emplace_back(*variable);
    names.push_back(Hidden().back().substr(0, Hidden().back().find('=')));
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

std::vector<std::string> InheritedEnvironment() {
  std::vector<std::string> variables = Hidden();
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  return variables;
}

std::vector<std::string> PortableEnvironment(const std::vector<std::string>& inherited,
                                             const std::vector<std::string>& passed) {
  std::vector<std::string> portable;
  for (const std::string& variable : inherited) {
    const size_t equals = variable.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    const std::string_view name = std::string_view(variable).substr(0, equals);
    if (BelongsToAnotherLauncher(name)) continue;
    if (!BelongsToThisHost(name) || IsNamed(name, passed)) portable.push_back(variable);
  }
  return portable;
}

std::vector<std::string> BuildRankEnvironment(const std::vector<std::string>& inherited, const RankEnvironment& rank) {
  const v1::Assignment& job = *rank.assignment;
  std::map<std::string, std::string> variables;
  for (const std::string& variable : inherited) {
    const size_t equals = variable.find('=');
    if (equals == std::string::npos || BelongsToAnotherLauncher(std::string_view(variable).substr(0, equals))) continue;
    variables[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  variables.emplace("OMP_NUM_THREADS", std::to_string(rank.cpu_share));  // unless set
  for (const std::string& variable : job.job().environment()) {
    const size_t equals = variable.find('=');
    if (equals != std::string::npos) variables[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  if (rank.rank->devices_size() > 0 && rank.rank->devices(0).kind() == v1::Device::KIND_CUDA) {
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
    variables["CUDA_VISIBLE_DEVICES"] = VisibleDevicesMask({rank.rank->devices().begin(), rank.rank->devices().end()});
  }
  const std::string node = std::to_string(rank.node);
  variables["COHORT_AGENT"] = rank.agent_address;
  variables["COHORT_JOB_ID"] = job.job().job_id();
  variables["COHORT_LOCAL_RANK"] = std::to_string(rank.rank->local_rank());
  variables["RANK"] = std::to_string(rank.rank->rank());
  variables["WORLD_SIZE"] = std::to_string(job.world_size());
  variables["LOCAL_RANK"] = std::to_string(rank.rank->local_rank());
  variables["LOCAL_WORLD_SIZE"] = std::to_string(job.placement().ranks_size());
  variables["GROUP_RANK"] = node;
  variables["NODE_RANK"] = node;
  variables["GROUP_WORLD_SIZE"] = std::to_string(job.nodes_size());
  variables["MASTER_ADDR"] = job.master_address();
  variables["MASTER_PORT"] = std::to_string(job.master_port());
  variables["TORCHELASTIC_RUN_ID"] = job.job().job_id();
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(job.job().max_restarts());
  variables["COHORT_EPOCH"] = std::to_string(std::max<uint64_t>(job.epoch(), 1));
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(job.epoch() > 0 ? job.epoch() - 1 : 0);
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

}  // namespace cohort::launcher
