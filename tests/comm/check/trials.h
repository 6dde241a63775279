// Random programs of one group in which one thing is wrong: a bit of a result on one rank, or an input that is not
// finite. Every rank's error must name the call, and the rank where there are three or more.
//
// A result is damaged as a fault of the memory would damage it: between the end of the call and the look at its result.
// The linker leads calls of HashResult through this file (CMakeLists.txt), so that the library has no door for it.
#pragma once

#include <cstdint>
#include <string>

#include "cohort/comm/communicator.h"

namespace cohort::testing {

// "" or what was wrong. `world` stays whole: each trial has a group of its own, of all ranks or some, whose size it
// puts into `copies`. Operations, types, counts, algorithms, ranks, elements and bits are drawn. Collective, with equal
// seeds.
std::string DamageResult(comm::Communicator& world, uint64_t seed, int* copies = nullptr);
std::string PassNonFinite(comm::Communicator& world, uint64_t seed, int* copies = nullptr);

}  // namespace cohort::testing
