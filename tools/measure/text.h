// Sizes and times as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::measure {

// "8", "4K", "128M", "1G", also "4KiB" and "4kb": always powers of 1024. kInvalidArgument says what is allowed.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);
// "8 B", "4 KiB", "1.5 MiB".
std::string BytesText(double bytes);
// Now, as strftime writes it.
std::string UtcText(const char* format);
// The parts between commas.
std::vector<std::string> SplitAtCommas(const std::string& text);
// "0.33", "12.4", "8,227": three digits at least, for tables.
std::string MicrosecondsText(double us);
// `value` with `digits` digits behind the point.
std::string Fixed(double value, int digits);
// `text` as a JSON string, with the quotes; bytes that are no UTF-8 become U+FFFD.
std::string JsonString(std::string_view text);
// With &, <, > and quotes as entities, for SVG.
std::string XmlText(std::string_view text);

}  // namespace cohort::measure
