#include "cohort/launcher/base/process_environment.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

extern char** environ;

namespace cohort::launcher {
namespace {

// See HideVariables; never destroyed, since it is read until the end.
std::vector<std::string>& Hidden() {
  static auto* const hidden = new std::vector<std::string>();
  return *hidden;
}

bool BelongsToThisHost(std::string_view name) {
  static constexpr std::string_view kNames[] = {"_",
                                                "AWS_BATCH_JOB_NODE_INDEX",
                                                "CUDA_VISIBLE_DEVICES",
                                                "DISPLAY",
                                                "DSTACK_NODE_RANK",
                                                "HOME",
                                                "HOSTNAME",
                                                "JAX_PROCESS_ID",
                                                "JOB_COMPLETION_INDEX",
                                                "LOGNAME",
                                                "LWS_WORKER_INDEX",
                                                "MAIL",
                                                "NGC_ARRAY_INDEX",
                                                "OLDPWD",
                                                "PET_NODE_RANK",
                                                "POD_IP",
                                                "POD_NAME",
                                                "PROCESS_ID",
                                                "PWD",
                                                "SHELL",
                                                "SHLVL",
                                                "SKYPILOT_NODE_RANK",
                                                "SM_CURRENT_HOST",
                                                "TEMP",
                                                "TMP",
                                                "TMPDIR",
                                                "TPU_WORKER_ID",
                                                "TTY",
                                                "USER",
                                                "WAYLAND_DISPLAY"};
  for (const std::string_view known : kNames) {
    if (name == known) return true;
  }
  for (const std::string_view prefix : {"DBUS_", "SSH_", "XDG_", "SLURM_", "SLURMD_"}) {
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

bool IsJobVariable(std::string_view name) {
  static constexpr std::string_view kJobVariables[] = {"COHORT_CHECK", "COHORT_ENCRYPT_DATA", "COHORT_TORCH_BACKEND",
                                                       "COHORT_TRANSPORTS", "COHORT_TUNING"};
  return std::find(std::begin(kJobVariables), std::end(kJobVariables), name) != std::end(kJobVariables);
}

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
                                                "JSM_JSRUN_PORT",
                                                "ROLE_RANK",
                                                "ROLE_WORLD_SIZE",
                                                "ROLE_NAME",
                                                "TORCHELASTIC_ERROR_FILE"};
  if (IsRankVariable(name)) return true;
  for (const std::string_view known : kNames) {
    if (name == known) return true;
  }
  if (name == "PMIX_MCA_gds") return true;  // the server's, which the ranks learn from it
  for (const std::string_view choice : {"OMPI_MCA_", "OMPI_ALLOW_", "PMIX_MCA_"}) {
    if (name.starts_with(choice)) return false;  // the user's own
  }
  for (const std::string_view prefix : {"OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "COHORT_AGENT"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
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

}  // namespace cohort::launcher
