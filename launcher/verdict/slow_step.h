// Finds who took the time of a step beyond the usual. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cohort/launcher/verdict/evidence.h"

namespace cohort::launcher {

// Looks along the critical path of the step, an index of Steps::all, for the rank or call whose parts exceed what is
// usual there by most. `beyond_ns`: the step's time beyond the usual. Nothing: all parts are usual.
std::optional<Culprit> FindSlowPart(const Evidence& evidence, size_t step, uint64_t beyond_ns);

}  // namespace cohort::launcher
