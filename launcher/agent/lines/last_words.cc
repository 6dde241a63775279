#include "cohort/launcher/agent/lines/last_words.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace cohort::launcher {
namespace {

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// The length of the escape sequence at the start of `text`, which begins with ESC.
size_t EscapeLength(std::string_view text) {
  if (text.size() < 2) return text.size();
  size_t end = 2;
  if (text[1] == '[') {  // parameters, and one letter
    while (end < text.size() && (text[end] < 0x40 || text[end] > 0x7e)) ++end;
    return std::min(end + 1, text.size());
  }
  if (text[1] == ']') {  // a title or a link, ended by BEL or by ESC and a backslash
    while (end < text.size() && text[end] != '\a' && text[end] != '\x1b') ++end;
    return std::min(end + (end < text.size() && text[end] == '\x1b' ? 2 : 1), text.size());
  }
  return end;
}

// A letter or a digit of any alphabet. Lines and blocks (U+2500 to U+25BF), of which bars and rulers are drawn, are
// neither.
bool Says(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      if (std::isalnum(byte) != 0) return true;
      continue;
    }
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte != 0xe2 || next < 0x94 || next > 0x96) return true;
    i += 2;
  }
  return false;
}

std::string_view WithoutBlanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// "50%", "50 %", "5/10"
bool CountsUp(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (!IsDigit(text[i - 1])) continue;
    if (text[i] == '%' || text.substr(i).starts_with(" %") ||
        (text[i] == '/' && i + 1 < text.size() && IsDigit(text[i + 1])))
      return true;
  }
  return false;
}

}  // namespace

std::string Meaning(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    if (text[0] == '\x1b') {
      text.remove_prefix(EscapeLength(text));
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[0]);
    if (byte == '\t' || (byte >= 0x20 && byte != 0x7f)) plain += text[0];
    text.remove_prefix(1);
  }
  const std::string_view trimmed = WithoutBlanks(plain);
  return Says(trimmed) ? std::string(trimmed) : "";
}

std::string MeaningOfDrawn(std::string_view text) {
  const std::string plain = Meaning(text);
  if (!CountsUp(plain)) return plain;
  const size_t bracket = plain.rfind(']');  // of "50%|###   | 5/10 [00:01<00:01, 4.9it/s]"
  const std::string behind = bracket == std::string::npos ? "" : Meaning(std::string_view(plain).substr(bracket + 1));
  return CountsUp(behind) ? "" : behind;
}

std::string UncaughtException(const std::vector<std::string>& lines) {
  constexpr std::string_view kBegin = "terminate called after throwing an instance of '", kWhat = "  what():";
  std::string type, found;
  for (const std::string& line : lines) {
    if (const size_t at = line.find(kBegin); at != std::string::npos) {
      type = line.substr(at + kBegin.size());
      type = type.substr(0, type.rfind('\''));
      found = type;
    } else if (!type.empty() && line.starts_with(kWhat)) {
      const std::string text = Meaning(std::string_view(line).substr(kWhat.size()));
      if (!text.empty()) found = type + ": " + text;
      type.clear();
    }
  }
  return found;
}

bool IsRemark(std::string_view text) {
  std::string lower(text.substr(0, 200));
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto has = [&lower](std::string_view word) { return lower.find(word) != std::string::npos; };
  return (has("warn") || has("info") || has("debug") || has("deprecat")) && !has("error") && !has("fail");
}

}  // namespace cohort::launcher
