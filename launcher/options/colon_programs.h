// mpirun's form of several programs in one job: `-n 1 server : -n 3 --env A=1 client`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/options/command_parser.h"
#include "cohort/launcher/options/rank_program.h"

namespace cohort::launcher {

// The programs of a command line of which `first` has parsed the options before the first one. A ':' begins another
// program, with its own -n, --env and -m, where FindColon says so and no "--" stands before the program. The first
// one's -n is left to the caller. One of several may have none. kInvalidArgument: a program is missing, or has an
// option of the whole job. `print`: the text to print instead, where a later program's options ask for it. Pure.
absl::StatusOr<std::vector<RankProgram>> ReadColonPrograms(const CommandParser& first,
                                                           std::optional<std::string>* print);

}  // namespace cohort::launcher
