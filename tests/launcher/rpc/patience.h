// How long these tests wait for what must happen.
#pragma once

#include <chrono>

namespace cohort::launcher {

inline constexpr std::chrono::seconds kPatience{30};  // a bound on hanging, not a promise

}  // namespace cohort::launcher
