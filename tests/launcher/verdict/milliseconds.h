// The unit of these tests: times are in nanoseconds.
#pragma once

#include <cstdint>

namespace cohort::launcher {

inline constexpr uint64_t kMs = 1'000'000;

}  // namespace cohort::launcher
