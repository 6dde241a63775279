// Whether a sanitizer slows this program down: tests whose point is a time of microseconds then skip.
#pragma once

#include "cohort/runtime/base/sanitizer.h"

namespace cohort::testing {

inline constexpr bool kSanitized = COHORT_THREAD_SANITIZER || COHORT_ADDRESS_SANITIZER;

}  // namespace cohort::testing
