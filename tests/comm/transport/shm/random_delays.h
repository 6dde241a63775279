// Delays at random instructions of real code, without a hook in it: a timer interrupts this process every few
// microseconds, and its handler spins, yields or sleeps. Together with the pulses of SIGSTOP that a parent sends
// (StopAndGoOn), everything that two stores, or a store and a load, can have between them is met often.
#pragma once

#include <cstdint>

#include "tests/comm/transport/shm/forked_ranks.h"

namespace cohort::comm::testing {

// Interrupts the calling process, which must have one thread, until its end. Once a process.
void BeginRandomDelays(uint64_t seed);

// Stops a random child for some microseconds, again and again, until all have ended.
void StopAndGoOn(ForkedRanks& ranks, uint64_t seed);

}  // namespace cohort::comm::testing
