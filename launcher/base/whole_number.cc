#include "cohort/launcher/base/whole_number.h"

#include <charconv>
#include <system_error>

namespace cohort::launcher {

std::optional<int> ReadWholeNumber(std::string_view text, int min, int max) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.front() == '-' || value < min || value > max) return std::nullopt;
  return value;
}

}  // namespace cohort::launcher
