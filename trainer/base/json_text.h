// Reads JSON that comes from outside: files of users and of other programs. It refuses what nlohmann-json takes
// silently: nesting without a bound, which its dump() follows by recursion, and keys that stand twice in an object, of
// which it keeps the last.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace cohort::trainer {

struct ParsedJson {
  nlohmann::json value;  // null where `why` says something
  std::string why;       // "it has the key fp16.enabled twice"; empty for JSON
};

// Parses `text`. Comments (// and /* */) are skipped where `comments` is set.
ParsedJson ParseJson(const std::string& text, bool comments = false);

// `value` as a short text for a message: cut behind `most` characters, and never an exception for bytes that are no
// UTF-8.
std::string ShortText(const nlohmann::json& value, size_t most = 100);

}  // namespace cohort::trainer
