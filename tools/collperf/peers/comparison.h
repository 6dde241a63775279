// The conductor of a comparison with other systems: `collperf --peers`.
#pragma once

#include <string>

#include "tools/collperf/options.h"

namespace cohort::collperf {

// Starts all systems, lets them take turns, prints what was measured and keeps it where `options.results` says.
// Returns the exit status.
int Compare(const Options& options, const std::string& command);

}  // namespace cohort::collperf
