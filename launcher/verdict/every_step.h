// Finds who makes every step long: ranks whose own time is longer than the others'. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "cohort/launcher/verdict/evidence.h"

namespace cohort::launcher {

// Compares the ranks' own times in these steps, indices of Steps::all. Nothing: no rank stands out from the noise of
// `usual_steps`, which are too few, or nobody waits for it. `lost_ns` and `waited_ns` are of one step.
std::optional<Culprit> FindSlowRank(const Evidence& evidence, const std::vector<size_t>& steps,
                                    const std::vector<size_t>& usual_steps);

// The same where no steps are known: the rank on the critical path of the whole time for which the others were blocked
// longest.
std::optional<Culprit> FindSlowRank(const Evidence& evidence);

// The part of these steps' critical path in which calls themselves ran, from 0 to 1.
double PartInCalls(const Evidence& evidence, const std::vector<size_t>& steps);

}  // namespace cohort::launcher
