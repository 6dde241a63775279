// Finds who is waited for when the history ends. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "cohort/launcher/verdict/evidence.h"

namespace cohort::launcher {

// The rank that the calls which have not ended lack, through others or not; or the call itself, where all its members
// have come. Nothing: no call has been open for `least_ns`. `lost_ns` is the time so far.
std::optional<Culprit> FindOpenWait(const Evidence& evidence, uint64_t least_ns);

}  // namespace cohort::launcher
