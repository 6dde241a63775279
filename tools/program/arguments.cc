#include "tools/program/arguments.h"

#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <system_error>

namespace cohort::tools {
namespace {

constexpr size_t kMostShown = 40;

// The number that the whole text is; nothing where it is none or too large for the type.
template <typename T>
std::optional<T> Parse(const std::string& text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end ? std::optional<T>(value) : std::nullopt;
}

std::string Shown(const std::string& text) {
  if (text.size() <= kMostShown) return "\"" + text + "\"";
  return "\"" + text.substr(0, kMostShown) + "...\" (" + std::to_string(text.size()) + " characters)";
}

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

template <typename T>
CLI::Validator Within(const char* kind, T least, T most, const std::string& least_text, const std::string& most_text) {
  const std::string range = least_text + " to " + most_text;
  return {[kind, least, most, range](std::string& text) {
            const std::optional<T> value = Parse<T>(text);
            // Not the other way round, which "nan" would pass.
            if (value.has_value() && *value >= least && *value <= most) return std::string();
            return "needs " + std::string(kind) + " from " + range + ", not " + Shown(text);
          },
          range};
}

}  // namespace

CLI::Validator Whole(int64_t least, int64_t most) {
  return Within<int64_t>("a whole number", least, most, std::to_string(least), std::to_string(most));
}

CLI::Validator Number(double least, double most) {
  return Within<double>("a number", least, most, Short(least), Short(most));
}

CLI::Validator NotEmpty(const std::string& what) {
  return {[what](std::string& text) { return text.empty() ? "needs " + what + ", not nothing" : std::string(); }, ""};
}

}  // namespace cohort::tools
