// Which of the versions that Highway compiled of a function this process calls. For the sources of this folder, within
// `#if HWY_ONCE`, after hwy/highway.h.
//
// In place of HWY_EXPORT and HWY_DYNAMIC_DISPATCH, because these need libhwy.so: up to 1.0.3 at least, it measures the
// timer's resolution whenever a process loads it (a static initializer of its benchmark), and that took 4 ms of CPU
// time, a third of what a rank spends from its start to its first barrier. Highway's headers need no library.
#pragma once

#include <cstdint>

#include "hwy/targets.h"

// Defines what COHORT_BEST_VERSION(function) looks up, in this scope.
#define COHORT_VERSIONS(function)                                                                           \
  static decltype(&HWY_STATIC_DISPATCH(function)) const function##Versions[HWY_MAX_DYNAMIC_TARGETS + 2] = { \
      nullptr, HWY_CHOOSE_TARGET_LIST(function), HWY_CHOOSE_FALLBACK(function)}

// The version for ChosenInstructionSet().
#define COHORT_BEST_VERSION(function) (*function##Versions[::cohort::comm::ChosenInstructionSet().GetIndex()])

namespace cohort::comm {

// Returns which of HWY_AVX2, HWY_AVX3 and HWY_AVX3_DL this CPU and its operating system have, as bits. On CPUs that are
// not x86-64 it returns what the compiler was told to assume.
int64_t SupportedInstructionSets();

// All that are supported, unless a test has called Update. Thread-safe.
hwy::ChosenTarget& ChosenInstructionSet();

}  // namespace cohort::comm
