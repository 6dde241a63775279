// Calls of a group of one: copies.
#pragma once

#include "cohort/comm/request.h"

namespace cohort::comm {

// Does what the request asks of a group of one rank, on host memory, at once.
void RunLocalCall(const CollectiveRequest& request);

}  // namespace cohort::comm
