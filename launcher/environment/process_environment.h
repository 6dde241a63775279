// The only place of launcher/ that reads environment variables, and the one that decides what ranks find in theirs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// Whether ranks find this variable in their environment by torchrun's names (RANK, WORLD_SIZE, MASTER_ADDR, ...), with
// values of their own. dlaunch leaves out what another launcher has put there, and takes none of them from --env. Pure.
bool IsRankVariable(std::string_view name);

// A variable of this process. Call before other threads exist.
std::optional<std::string> GetVariable(const char* name);
// The same, or a stand-in of tests.
using VariableLookup = std::function<std::optional<std::string>(const char* name)>;
// All of them, as NAME=VALUE.
std::vector<std::string> InheritedEnvironment();
// Takes away those whose names begin so, but for InheritedEnvironment: what a user has set for the program must not
// steer a library of ours. Call before other threads exist.
void HideVariables(std::string_view prefix);

// Those of `inherited` that mean the same on another host: not what tells of this machine, this session or its devices
// (HOSTNAME, HOME, SSH_*, XDG_*, TMPDIR, CUDA_VISIBLE_DEVICES, ...) unless `passed` names it ("HOME", or "XDG_*" for
// all that begin so), and never what belongs to another launcher. Pure.
std::vector<std::string> PortableEnvironment(const std::vector<std::string>& inherited,
                                             const std::vector<std::string>& passed);

// Everything that a rank's variables are made of.
struct RankEnvironment {
  const v1::Assignment* assignment = nullptr;
  const v1::RankPlacement* rank = nullptr;
  int node = 0;
  std::string agent_address;
  int cpu_share = 1;  // for OMP_NUM_THREADS
};

// The variables of one rank: those inherited, without what other launchers left there; then the job's own (--env); then
// what names this rank, which nothing overrides. Pure.
std::vector<std::string> BuildRankEnvironment(const std::vector<std::string>& inherited, const RankEnvironment& rank);

}  // namespace cohort::launcher
