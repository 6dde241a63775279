#include "cohort/launcher/machine/rank_environment.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/control/parts/program_of.h"
#include "cohort/launcher/machine/cuda_devices.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {

std::vector<std::string> BuildRankEnvironment(const std::vector<std::string>& inherited, const RankEnvironment& rank) {
  const v1::Assignment& job = *rank.assignment;
  std::map<std::string, std::string> variables;
  for (const std::string& variable : inherited) {
    const size_t equals = variable.find('=');
    if (equals == std::string::npos || BelongsToAnotherLauncher(std::string_view(variable).substr(0, equals))) continue;
    variables[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  variables.emplace("OMP_NUM_THREADS", std::to_string(rank.cpu_share));  // unless set, as the next
  if (!rank.nccl_plugin.empty()) variables.emplace("NCCL_PROFILER_PLUGIN", rank.nccl_plugin);
  const auto set = [&variables](const auto& assignments) {
    for (const std::string& variable : assignments) {
      const size_t equals = variable.find('=');
      if (equals != std::string::npos) variables[variable.substr(0, equals)] = variable.substr(equals + 1);
    }
  };
  set(job.job().environment());
  const RankPrograms& programs = job.job().programs();
  if (!programs.empty()) set(programs[ProgramOf(programs, rank.rank->rank())].environment());
  if (rank.rank->devices_size() > 0 && rank.rank->devices(0).kind() == v1::Device::KIND_CUDA) {
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
    variables["CUDA_VISIBLE_DEVICES"] = VisibleDevicesMask({rank.rank->devices().begin(), rank.rank->devices().end()});
  }
  if (!rank.torch_switch.empty()) {
    std::string& path = variables["PYTHONPATH"];
    path = rank.torch_switch + (path.empty() ? "" : ":" + path);
  }
  const std::string node = std::to_string(rank.node);
  variables["COHORT_AGENT"] = rank.agent_address;
  variables["COHORT_JOB_ID"] = job.job().job_id();
  variables["COHORT_LOCAL_RANK"] = std::to_string(rank.rank->local_rank());
  for (const char* const prefix : {"", "COHORT_"}) {  // programs give their children other RANKs
    variables[std::string(prefix) + "RANK"] = std::to_string(rank.rank->rank());
    variables[std::string(prefix) + "WORLD_SIZE"] = std::to_string(job.world_size());
  }
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

std::string NcclPluginOf(const std::string& own_path) {
  constexpr size_t kLongestPath = 250;  // NCCL cuts it behind that
  const std::filesystem::path above = std::filesystem::path(own_path).parent_path().parent_path();
  const std::string plugin = (above / "lib/cohort/libnccl-profiler-cohort.so").string();
  std::error_code error;
  return plugin.size() <= kLongestPath && std::filesystem::exists(plugin, error) ? plugin : "";
}

absl::StatusOr<std::string> TorchSwitchFolder(const std::vector<std::string>& inherited, const v1::JobSpec& job,
                                              const std::string& own_path) {
  constexpr std::string_view kVariable = "COHORT_TORCH_BACKEND=";
  constexpr std::string_view kPath = "PYTHONPATH=";
  std::string_view backend, path;
  const auto read = [&](std::string_view variable) {
    if (variable.starts_with(kVariable)) backend = variable.substr(kVariable.size());
    if (variable.starts_with(kPath)) path = variable.substr(kPath.size());
  };
  for (const std::string& variable : inherited) read(variable);
  for (const std::string& variable : job.environment()) read(variable);  // which win
  if (backend != "cohort") return "";
  const std::filesystem::path above = std::filesystem::path(own_path).parent_path().parent_path();
  for (const char* const place : {"switch", "python/dlaunch/switch"}) {
    std::error_code error;
    if (std::filesystem::exists(above / place / "sitecustomize.py", error)) return (above / place).string();
  }
  while (!path.empty()) {
    const std::string_view entry = path.substr(0, path.find(':'));
    const std::filesystem::path folder = std::filesystem::path(job.working_directory()) / entry / "dlaunch/switch";
    std::error_code error;
    if (!entry.empty() && std::filesystem::exists(folder / "sitecustomize.py", error)) return folder.string();
    path.remove_prefix(std::min(path.size(), entry.size() + 1));
  }
  return WithRemedy(
      Remedy::kTorchPackage,
      absl::FailedPreconditionError(
          "--torch-backend cohort (COHORT_TORCH_BACKEND): the Python package dlaunch lies neither beside " + own_path +
          " nor in a folder of PYTHONPATH, so PyTorch's gloo would not be served by Cohort; use the dlaunch of the "
          "wheel (pip install dlaunch-*.whl), or name the folder that holds the package in PYTHONPATH"));
}

}  // namespace cohort::launcher
