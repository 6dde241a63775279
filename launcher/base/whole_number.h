// Whole numbers as people and schedulers write them.
#pragma once

#include <optional>
#include <string_view>

namespace cohort::launcher {

// The number that the whole text is, in digits alone; empty where it is none, or not from `min` (0 or more) to `max`.
// Pure.
std::optional<int> ReadWholeNumber(std::string_view text, int min, int max);

}  // namespace cohort::launcher
