// Finding the programs of a job, before anything is started.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/machine/mpi_program.h"
#include "cohort/launcher/options/options.h"

namespace cohort::launcher {

// Reads the file of --multi-prog, which says how many ranks there are where no option does, and finds each program:
// its name becomes its path, and what Python runs gets python3 before it. `path`, `working_directory` and `own_folder`
// are those of FindProgram. Blocks on files. kInvalidArgument: of the file; the others are FindProgram's and name the
// program by its place where there are several.
absl::Status FindPrograms(const std::string& path, const std::string& working_directory, const std::string& own_folder,
                          Options* options);

// The words for what asks for options.ranks: "-n 4", "the programs have 4 ranks together", "programs.conf names 4
// ranks". Empty: nothing does.
std::string DescribeRanksWanted(const Options& options);

// kInvalidArgument: a program is another launcher (StartsRanks), of which each of `world_size` ranks would start
// one of its own. --mpi none lets them.
absl::Status RefuseLaunchers(const Options& options, int world_size);

// MpiLibraryOf each program.
std::vector<MpiLibrary> MpiLibrariesOf(const std::vector<RankProgram>& programs);

// kInvalidArgument: ranks would wait in MPI for others that can't come, as `libraries`, those of each program, tell.
// Some programs use MPICH and others Open MPI, or --mpi pmi1 is given for Open MPI, which does not speak it.
absl::Status RefuseMixedMpi(const Options& options, const std::vector<MpiLibrary>& libraries, int world_size);

// "/opt/train (in PATH)"; of several "rank 0: ./server; ranks 1-3: /opt/client (in PATH)".
std::string DescribePrograms(const std::vector<RankProgram>& programs);

}  // namespace cohort::launcher
