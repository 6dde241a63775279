// Black-box records as messages.
#pragma once

#include <cstdint>

#include "cohort/runtime/segment/black_box.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// What a rank's black box says of operation `sequence` of a group; where it has not come to it, or may have left it so
// far behind that the box has forgotten it, its latest call: without `sequence_seen`, and with it but without a
// signature.
v1::CallState InspectOperation(const runtime::BlackBoxReader& box, uint32_t rank, uint64_t group, uint64_t epoch,
                               uint64_t sequence);

// The rank's latest call; `present` is false when it has made none.
v1::CallState LatestCall(const runtime::BlackBoxReader& box, uint32_t rank);

}  // namespace cohort::launcher
