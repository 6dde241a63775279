// Plans drawn for people: a column for each rank, a row for each round of messages.
#pragma once

#include <span>
#include <string>

#include "cohort/comm/plan/plan.h"

namespace cohort::tools {

// Draws plans. Row k shows round k: messages that end a chain of k messages, and the local steps after them. `in[0]>2`
// sends to rank 2, `in[0]>*` publishes. `out[0]<3` receives from rank 3, `out[0]=in[0]+<3` receives and combines. Plans
// that are wrong are drawn as far as they get.
std::string DrawPlans(std::span<const comm::Plan> plans);

}  // namespace cohort::tools
