// The variables that a rank finds in its environment.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// Everything that a rank's variables are made of.
struct RankEnvironment {
  const v1::Assignment* assignment = nullptr;
  const v1::RankPlacement* rank = nullptr;
  int node = 0;
  std::string agent_address;
  int cpu_share = 1;         // for OMP_NUM_THREADS
  std::string torch_switch;  // TorchSwitchFolder
  std::string nccl_plugin;   // NcclPluginOf
};

// The variables of one rank: those inherited, without what other launchers left there; then the job's own (--env) and
// its program's; then what names this rank, which nothing overrides. Pure.
std::vector<std::string> BuildRankEnvironment(const std::vector<std::string>& inherited, const RankEnvironment& rank);

// The path of NCCL's profiler plug-in (comm/nccl/profiler), for NCCL_PROFILER_PLUGIN: in ../lib/cohort beside the
// folder of dlaunch, whose path is `own_path`, as a build, the wheel and an installed tree have it. Empty where there
// is none, or where its path is longer than NCCL takes.
std::string NcclPluginOf(const std::string& own_path);

// The folder that ranks find first on PYTHONPATH where their environment says COHORT_TORCH_BACKEND=cohort, so that
// PyTorch's gloo is served by Cohort. It lies beside the folder of dlaunch, whose path is `own_path`, as the wheel and
// a build have it, or in the package `dlaunch` of a folder that the ranks' PYTHONPATH names. Empty where the variable
// does not say so; kFailedPrecondition where the folder is absent.
absl::StatusOr<std::string> TorchSwitchFolder(const std::vector<std::string>& inherited, const v1::JobSpec& job,
                                              const std::string& own_path);

}  // namespace cohort::launcher
