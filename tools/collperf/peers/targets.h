// The targets of a comparison.
#pragma once

#include <string>
#include <vector>

#include "tools/collperf/peers/turns.h"

namespace cohort::collperf {

// The promises of this project with the figures beside them: "met" or "missed". What was not measured is left out.
std::string TargetTable(const std::vector<PointResult>& points);

}  // namespace cohort::collperf
