// Programs of a job by a file, as srun's --multi-prog takes it: a line for each program.
//
//   # ranks       program  arguments
//   0             ./server --port 7
//   1-3,5         ./client --task %t --of '100%'
//   *             ./idler
//
// %t in an argument is the rank, %o its place among those that the line names (2 for rank 3 above); in single quotes
// they mean nothing. Quotes and backslashes work as in a shell. A line goes on after a backslash at its end.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/options/rank_program.h"

namespace cohort::launcher {

// Reads the file's `text`. kInvalidArgument names `file`, the line and what would work: it has no program, ranks that
// are none, a rank twice, two lines with '*', or an open quote. Pure.
absl::StatusOr<std::vector<RankProgram>> ReadMultiProg(const std::string& text, const std::string& file);

}  // namespace cohort::launcher
