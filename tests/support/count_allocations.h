// Counts the allocations of a test program by C++'s operator new, and lets one fail. Linking cohort::count_allocations
// replaces it.
#pragma once

#include <cstdint>

namespace cohort::testing {

// The allocations of the whole process so far.
int64_t Allocations();

// Lets the `number`-th allocation of this thread from now on throw std::bad_alloc, once; 0: none. Returns what is left
// of the number before: 0 when that allocation has failed.
int64_t FailAllocation(int64_t number);

}  // namespace cohort::testing
