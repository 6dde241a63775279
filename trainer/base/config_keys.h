// Tables of the keys that a configuration of another system may have: for each one what becomes of it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"

namespace cohort::trainer {

enum class KeyUse {
  kApplied,        // done as it says
  kWithoutEffect,  // what is computed is the same without it
  kRefused,        // changes what is computed, and is taken with its value "off" alone
};

struct ConfigKey {
  std::string_view path;  // "zero_optimization.stage"
  KeyUse use = KeyUse::kWithoutEffect;
  // JSON of a value that differs from the other system's default.
  std::string_view example;
  // kRefused: JSON of the value that stands for "off", where it is not null or empty; or kOffDisabled.
  std::string_view off = "";
  // kRefused: what to do instead.
  std::string_view remedy = "";
};

// An object without an "enabled": true at any depth is off.
inline constexpr std::string_view kOffDisabled = "disabled";

// The key of that path; null for none.
const ConfigKey* FindKey(std::span<const ConfigKey> keys, std::string_view path);

// The path that the unknown `key` of `section` ("" for the whole) was probably meant to be; empty for none. It is one
// of the same section that is spelt alike, or one of another section that is spelt the same.
std::string_view MeantKey(std::span<const ConfigKey> keys, std::string_view section, std::string_view key);

// Whether a key of kRefused has a value that stands for its absence.
bool IsOff(const ConfigKey& key, const nlohmann::json& value);

// Whether something within `value` says "enabled": true.
bool Enables(const nlohmann::json& value);

}  // namespace cohort::trainer
