// Programs of a job by a file, as srun's --multi-prog takes it: a line for each program.
//
//   # ranks       program  arguments
//   0             ./server --port 7
//   1-3,5         ./client --task %t --of '100%'
//   *             ./idler
//
// %t in an argument is the rank, %o its place among those that the line names (2 for rank 3 above; the rank itself in a
// line of '*'). Single quotes and backslashes work as in a shell, and %t means nothing in quotes. Double quotes are
// characters like others. A line goes on after a backslash at its end, without a blank. LEFT_OUT.md has what differs
// from srun.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/options/rank_program.h"

namespace cohort::launcher {

// Reads the file's `text`. kInvalidArgument names `file`, the line and what would work: it has no program, ranks that
// are none, a rank twice, two lines with '*', an open quote, or a word with one double quote alone. Pure.
absl::StatusOr<std::vector<RankProgram>> ReadMultiProg(const std::string& text, const std::string& file);

}  // namespace cohort::launcher
