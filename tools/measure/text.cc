#include "tools/measure/text.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "absl/status/status.h"

namespace cohort::measure {

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  const auto refuse = [text] {
    return absl::InvalidArgumentError("\"" + std::string(text.substr(0, 64)) +
                                      "\" is no size: write bytes, or a number with K, M or G such as 128M");
  };
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return refuse();
  std::string unit;
  for (const char* at = end; at != text.data() + text.size(); ++at) {
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*at)));
  }
  int shift = 0;
  if (!unit.empty()) {
    const size_t place = std::string_view("bkmgt").find(unit[0]);
    if (place == std::string_view::npos) return refuse();
    shift = static_cast<int>(place) * 10;
    const std::string rest = unit.substr(1);
    const bool fits = rest.empty() || (unit[0] != 'b' && (rest == "b" || rest == "ib"));
    if (!fits) return refuse();
  }
  if (number > (std::numeric_limits<int64_t>::max() >> shift)) return refuse();
  return number << shift;
}

std::string BytesText(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.4g %s", bytes, kUnits[unit]);
  return text;
}

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string UtcText(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[64] = "";
  if (gmtime_r(&now, &utc) != nullptr) (void)std::strftime(text, sizeof text, format, &utc);
  return text;
}

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

std::string MicrosecondsText(double us) {
  if (us < 10) return Fixed(us, 2);
  if (us < 100) return Fixed(us, 1);
  std::string text = Fixed(us, 0);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

std::string JsonString(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string XmlText(std::string_view text) {
  std::string xml;
  for (const char c : text) {
    switch (c) {
      case '&':
        xml += "&amp;";
        break;
      case '<':
        xml += "&lt;";
        break;
      case '>':
        xml += "&gt;";
        break;
      case '"':
        xml += "&quot;";
        break;
      default:
        xml += c;
    }
  }
  return xml;
}

}  // namespace cohort::measure
