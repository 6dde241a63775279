// Ours as a system of a comparison with others.
#pragma once

#include <string>

namespace cohort::collperf {

// Serves the conductor whose session's memory has the path, in the given slot (measure::Serve). Variant 0 is private
// memory, variant 1 window memory, each on a group of its own, as Communicator::AllocateWindow advises. Returns the
// exit status.
int ServeComparison(const std::string& path, int ranks, int slot);

}  // namespace cohort::collperf
