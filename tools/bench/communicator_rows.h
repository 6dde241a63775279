// The same measurements through a Communicator, with all its layers.
#pragma once

#include <cstddef>

#include "tools/bench/pinned_pair.h"

namespace cohort::bench {

// All-reduce of float32, out of place, private memory.
Statistics CommunicatorAllReduce(size_t bytes, bool gated, int calls);

}  // namespace cohort::bench
