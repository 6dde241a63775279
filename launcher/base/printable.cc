#include "cohort/launcher/base/printable.h"

#include <cstdint>

namespace cohort::launcher {
namespace {

// The bytes of a well-formed UTF-8 sequence at the start of `text` that is no control character, or 0.
size_t PrintableLength(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 && first <= 0xf4  ? 4
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xc2 && first < 0xe0 ? 2
                                                        : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  if (first == 0xc2 && second < 0xa0) return 0;  // C1 controls
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool outside = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  // U+202A..U+202E and U+2066..U+2069 turn the direction of what follows.
  const bool turns = first == 0xe2 && ((second == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae) ||
                                       (second == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9));
  return overlong || outside || turns ? 0 : length;
}

}  // namespace

std::string Printable(std::string_view text, size_t most) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string shown;
  const std::string_view taken = text.substr(0, most);
  for (size_t i = 0; i < taken.size();) {
    if (const size_t length = PrintableLength(taken.substr(i)); length > 0) {
      shown += taken.substr(i, length);
      i += length;
      continue;
    }
    const auto byte = static_cast<uint8_t>(taken[i++]);
    if (byte == '\t') {
      shown += "  ";
    } else {
      shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return taken.size() < text.size() ? shown + " ..." : shown;
}

std::string PrintableLines(std::string_view text) {
  std::string shown;
  for (size_t newline = 0; newline != std::string_view::npos;) {
    newline = text.find('\n');
    shown += Printable(text.substr(0, newline));
    if (newline == std::string_view::npos) break;
    shown += '\n';
    text.remove_prefix(newline + 1);
  }
  return shown;
}

}  // namespace cohort::launcher
