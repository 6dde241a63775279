// Counts the allocations of a test program by C++'s operator new. Linking count_allocations.cc replaces it.
#pragma once

#include <cstdint>

namespace cohort::testing {

// The allocations of the whole process so far.
int64_t Allocations();

}  // namespace cohort::testing
