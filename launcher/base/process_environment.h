// The environment variables of this process. This is the only place in launcher/ that reads them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::launcher {

// Returns whether ranks find this variable in their environment by torchrun's names (RANK, WORLD_SIZE, MASTER_ADDR,
// ...), with values of their own. dlaunch leaves out another launcher's values, and takes none of them from --env.
// Pure.
bool IsRankVariable(std::string_view name);

// Returns whether all ranks of a job must have the same value of this variable of Cohort's: those that
// runtime/README.md calls equal on all ranks. dlaunch sets it for a whole job only. Pure.
bool IsJobVariable(std::string_view name);

// Returns a variable of this process. Call it before other threads exist.
std::optional<std::string> GetVariable(const char* name);
// As GetVariable, or a stand-in of tests.
using VariableLookup = std::function<std::optional<std::string>(const char* name)>;
// Returns all of them, as NAME=VALUE.
std::vector<std::string> InheritedEnvironment();
// Removes variables whose names begin with `prefix`, but InheritedEnvironment still has them: a user's settings for the
// program must not steer a library of ours. Call it before other threads exist.
void HideVariables(std::string_view prefix);

// Returns whether another launcher set this variable for its own processes. A program that finds it would take itself
// for one of them. True for every IsRankVariable. Pure.
bool BelongsToAnotherLauncher(std::string_view name);

// Returns variables of `inherited` that mean the same on another host. Variables of this machine, this session or its
// devices are left out (HOSTNAME, HOME, SSH_*, XDG_*, TMPDIR, CUDA_VISIBLE_DEVICES, ...). `passed` keeps those that it
// names ("HOME", or "XDG_*" for a prefix). Variables of another launcher are always left out. Pure.
std::vector<std::string> PortableEnvironment(const std::vector<std::string>& inherited,
                                             const std::vector<std::string>& passed);

}  // namespace cohort::launcher
