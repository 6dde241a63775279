// Finds who is waited for when the history ends. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/launcher/verdict/evidence.h"
#include "cohort/launcher/verdict/history.h"

namespace cohort::launcher {

// The rank that the calls which have not ended lack, through others or not; or the call itself, where all its members
// have come. Nothing: no call has been open for `least_ns`. `lost_ns` is the time so far.
std::optional<Culprit> FindOpenWait(const Evidence& evidence, uint64_t least_ns);

// The culprit of a wait for ranks that have not joined. It names no call, and nobody who waits. `ranks` is not empty.
Culprit BlameUnjoined(const std::vector<UnjoinedRank>& ranks);

// The history until calls failed with which it ends, as where their deadline has passed: there they have not ended.
// Nothing: none has failed that took `least_ns`, or calls that ended well have begun since.
std::optional<History> UntilFailure(const History& history, uint64_t least_ns);

}  // namespace cohort::launcher
