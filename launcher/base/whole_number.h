// Whole numbers as people and schedulers write them.
#pragma once

#include <optional>
#include <string_view>

namespace cohort::launcher {

// Returns the number if the whole text consists of digits and it lies from `min` (0 or more) to `max`; otherwise
// nothing. Pure.
std::optional<int> ReadWholeNumber(std::string_view text, int min, int max);

}  // namespace cohort::launcher
