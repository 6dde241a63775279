#include "cohort/trainer/base/config_keys.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;

// "" and "stage" for "stage"; "zero_optimization" and "stage" for "zero_optimization.stage".
std::pair<std::string_view, std::string_view> SectionAndKey(std::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

// Letters in small, dashes and blanks as underscores.
std::string Plain(std::string_view key) {
  std::string plain(key);
  for (char& letter : plain) {
    letter = letter == '-' || letter == ' ' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return plain;
}

// The number of letters to insert, remove or replace.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

bool IsLike(const std::string& key, std::string_view known) {
  constexpr size_t kLong = 8, kEnding = 8;  // a long beginning says what is meant
  if (key.size() > 2 * known.size() + 2) return false;
  if (EditDistance(key, known) <= std::max<size_t>(1, std::min(key.size(), known.size()) / 5)) return true;
  const size_t shorter = std::min(key.size(), known.size()), longer = std::max(key.size(), known.size());
  return shorter >= kLong && longer - shorter <= kEnding && (key.starts_with(known) || known.starts_with(key));
}

bool IsFalse(const Json& value) { return value.is_null() || value == false || value == 0 || value == "false"; }

}  // namespace

const ConfigKey* FindKey(std::span<const ConfigKey> keys, std::string_view path) {
  const auto found = std::find_if(keys.begin(), keys.end(), [path](const ConfigKey& key) { return key.path == path; });
  return found == keys.end() ? nullptr : &*found;
}

std::string_view MeantKey(std::span<const ConfigKey> keys, std::string_view section, std::string_view key) {
  const std::string plain = Plain(key);
  std::string_view best;
  size_t least = std::string_view::npos;
  for (const ConfigKey& known : keys) {
    const auto [known_section, name] = SectionAndKey(known.path);
    if (known_section != section || !IsLike(plain, name)) continue;
    const size_t distance = EditDistance(plain, name);
    if (distance < least) {
      least = distance;
      best = known.path;
    }
  }
  if (!best.empty()) return best;
  for (const ConfigKey& known : keys) {
    if (SectionAndKey(known.path).second == plain) return known.path;
  }
  return "";
}

bool Enables(const Json& value) {
  if (!value.is_structured()) return false;
  for (const auto& item : value.items()) {
    if (value.is_object() && item.key() == "enabled" && !item.value().is_structured() && !IsFalse(item.value())) {
      return true;
    }
    if (Enables(item.value())) return true;
  }
  return false;
}

bool IsOff(const ConfigKey& key, const Json& value) {
  if (value.is_null() || (value.is_structured() && value.empty())) return true;
  if (key.off == kOffDisabled) return value == false || (value.is_object() && !Enables(value));
  return !key.off.empty() && value == Json::parse(key.off);
}

}  // namespace cohort::trainer
