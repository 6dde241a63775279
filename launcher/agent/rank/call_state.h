// Black-box records as messages.
#pragma once

#include <cstdint>

#include "cohort/runtime/segment/black_box.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// The record that a rank's black box holds of operation `sequence` of a group, or else the rank's latest call. The
// latest call has no `sequence_seen` if the rank has not come to the operation. It has `sequence_seen` and no signature
// if the box may have forgotten the operation.
v1::CallState InspectOperation(const runtime::BlackBoxReader& box, uint32_t rank, uint64_t group, uint64_t epoch,
                               uint64_t sequence);

// The rank's latest call; `present` is false when it has made none.
v1::CallState LatestCall(const runtime::BlackBoxReader& box, uint32_t rank);

}  // namespace cohort::launcher
