// Guesses what somebody meant who typed an option or a command that dlaunch does not have. Pure.
#pragma once

#include <string>
#include <vector>

namespace cohort::launcher {

// The long names of one option, the usual one first, without dashes.
using OptionNames = std::vector<std::string>;

// "--hosts" for "-host" or "--hostz": what other launchers call it, or the option whose name differs in a third of its
// letters at the most, and in three; empty: none is like it.
std::string MeantOption(const std::string& name, const std::vector<OptionNames>& known);

// "status" for "statsu": dlaunch's own command whose name is like that; empty: none is.
std::string MeantCommand(const std::string& name);

// Advice for `--nproc-per-node gpu`, and torchrun's other words there; empty for anything else.
std::string InsteadOfCounting(const std::string& what);

// Advice for an option of torchrun, mpirun or srun that is not taken here, such as --local_addr or -wdir;
// empty for any other.
std::string InsteadOfOption(std::string name);

}  // namespace cohort::launcher
