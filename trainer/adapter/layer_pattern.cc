#include "cohort/trainer/adapter/layer_pattern.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <regex>
#include <string_view>

#include "c10/util/Exception.h"

namespace cohort::trainer {
namespace {

constexpr size_t kMostLetters = 256;

// Whether the text ends in a second repetition of one thing: an error in Python ("a**"), or a repetition that gives
// nothing back ("a*+"). "a*?" is one repetition.
bool RepeatsARepetition(std::string_view text) {
  const auto at = [text](size_t from_end) { return from_end <= text.size() ? text[text.size() - from_end] : '\0'; };
  const auto repeats = [](char letter) { return letter == '*' || letter == '+' || letter == '}'; };
  const bool again = at(1) == '*' || at(1) == '+' || at(1) == '{';
  if (at(2) == '?') return at(3) != '(' && (again || (at(1) == '?' && (repeats(at(3)) || at(3) == '?')));
  return again && repeats(at(2));
}

// Whether Python and ECMAScript read the key alike.
bool IsPlain(std::string_view key) {
  for (size_t i = 0; i < key.size(); ++i) {
    const auto letter = static_cast<unsigned char>(key[i]);
    const char next = i + 1 < key.size() ? key[i + 1] : '\0';
    if (letter < ' ' || letter > '~') return false;
    if (letter == '(' && next == '?' && key.substr(i, 3) != "(?:") return false;
    if (next != '\0' && RepeatsARepetition(key.substr(0, i + 2))) return false;
    if (letter == '[' && (next == '[' || next == ':' || next == ']')) return false;
    if (letter != '\\') continue;
    const bool is_class = next == 'd' || next == 'w';
    if (!is_class && std::ispunct(static_cast<unsigned char>(next)) == 0) return false;
    ++i;
  }
  return key.size() <= kMostLetters;
}

// As re.match(rf"(.*\.)?({key})$", name) of Python. Takes no exponential time where the library can avoid it: files
// bring the expressions.
std::optional<std::regex> Compiled(const std::string& key) {
  if (!IsPlain(key)) return std::nullopt;
  auto options = std::regex::ECMAScript;
#ifdef __GLIBCXX__
  options |= std::regex_constants::__polynomial;
#endif
  try {
    return std::regex("(.*\\.)?(" + key + ")", options);
  } catch (const std::regex_error&) {
    return std::nullopt;
  }
}

// Letters, digits, "_" and "-" alone, and dots, which stand for any letter. Most keys are such: expressions take time.
bool IsName(std::string_view key) {
  return std::all_of(key.begin(), key.end(), [](unsigned char letter) {
    return letter < 128 && (std::isalnum(letter) != 0 || letter == '_' || letter == '-' || letter == '.');
  });
}

bool EndsWithName(std::string_view name, std::string_view key) {
  if (name.size() < key.size()) return false;
  const std::string_view head = name.substr(0, name.size() - key.size()), tail = name.substr(head.size());
  if (!head.empty() && head.back() != '.') return false;
  return std::equal(key.begin(), key.end(), tail.begin(),
                    [](char own, char other) { return own == '.' || own == other; });
}

}  // namespace

void CheckLayerPattern(const std::string& key, const std::string& who) {
  TORCH_CHECK(IsName(key) || Compiled(key).has_value(), who, " is keyed by \"", key.substr(0, kMostLetters),
              "\", an expression that is not understood; name the layers");
}

bool FitsLayer(const std::string& key, const std::string& name) {
  if (IsName(key)) return EndsWithName(name, key);
  const std::optional<std::regex> expression = Compiled(key);
  return expression.has_value() && std::regex_match(name, *expression);
}

}  // namespace cohort::trainer
