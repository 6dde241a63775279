// Times every algorithm at every point of a grid of operations and sizes, in turn: `--each-algorithm`.
//
// Algorithms that run the same plan count as one ("flat|chain"). Groups of hosts with several ranks may offer many
// compositions. A first turn of all then leaves the best for the others. `ratio` compares chosen and best within each
// turn and is the median over the turns. The least of several noisy medians is too small by chance. If the choice seems
// to miss, the two are therefore measured again alone, turn by turn. `again` is that result; it equals `ratio` if it
// was not needed.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/collperf/options.h"
#include "tools/collperf/rank_session.h"

namespace cohort::collperf {

// Collective. Rank 0 prints a line of CSV for each point: the selector's choice, the best, and all medians.
// `transport` is the label of the lines.
absl::Status MeasureAlgorithms(RankSession& session, const Options& options, const std::string& transport);

}  // namespace cohort::collperf
