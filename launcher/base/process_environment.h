// The environment variables of this process: the only place of launcher/ that reads them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Whether another launcher set this variable for its own processes. A program that finds it would take itself for one
// of them. True for every IsRankVariable. Pure.
bool BelongsToAnotherLauncher(std::string_view name);

// Those of `inherited` that mean the same on another host: not what tells of this machine, this session or its devices
// (HOSTNAME, HOME, SSH_*, XDG_*, TMPDIR, CUDA_VISIBLE_DEVICES, ...) unless `passed` names it ("HOME", or "XDG_*" for
// all that begin so), and never what belongs to another launcher. Pure.
std::vector<std::string> PortableEnvironment(const std::vector<std::string>& inherited,
                                             const std::vector<std::string>& passed);

}  // namespace cohort::launcher
