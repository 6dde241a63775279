#include "cohort/trainer/compat/pt/pickle_text.h"

#include <charconv>
#include <cstddef>
#include <cstdint>

#include "cohort/trainer/compat/pt/error.h"

namespace cohort::trainer::pt {
namespace {

void AppendUtf8(std::string& text, uint32_t code) {
  const auto byte = [&](uint32_t value) { text += static_cast<char>(value); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xc0 | code >> 6);
    byte(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    byte(0xe0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  } else {
    byte(0xf0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3f));
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  }
}

// The number that the `digits` hexadecimal digits at `place` are.
uint32_t Hexadecimal(std::string_view line, size_t place, size_t digits) {
  uint32_t code = 0;
  const char* begin = line.data() + place;
  if (place + digits > line.size() || std::from_chars(begin, begin + digits, code, 16).ptr != begin + digits ||
      code > 0x10ffff) {
    Refuse("its pickle has a text with a broken escape");
  }
  return code;
}

}  // namespace

std::string UnescapedText(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    const char next = line[i] == '\\' && i + 1 < line.size() ? line[i + 1] : '\0';
    if (next == 'u' || next == 'U') {
      const size_t digits = next == 'u' ? 4 : 8;
      AppendUtf8(text, Hexadecimal(line, i + 2, digits));
      i += 1 + digits;
    } else {
      AppendUtf8(text, static_cast<uint8_t>(line[i]));
    }
  }
  return text;
}

std::string UnquotedText(std::string_view line) {
  if (line.size() < 2 || line.front() != line.back() || (line.front() != '\'' && line.front() != '"')) {
    Refuse("its pickle has a text without quotes");
  }
  line = line.substr(1, line.size() - 2);
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      text += line[i];
      continue;
    }
    const char next = line[++i];
    if (next == 'x') {
      text += static_cast<char>(Hexadecimal(line, i + 1, 2));
      i += 2;
    } else {
      text += next == 'n' ? '\n' : next == 'r' ? '\r' : next == 't' ? '\t' : next;
    }
  }
  return text;
}

}  // namespace cohort::trainer::pt
