#include "cohort/launcher/agent/stacks/python_lines.h"

#include <cstddef>

namespace cohort::launcher {
namespace {

constexpr int kNoLine = -128;  // in tables of 3.10

int LineByLnotab(std::string_view table, int first, int64_t offset) {
  int64_t at = 0;
  int line = first;
  for (size_t i = 0; i + 1 < table.size(); i += 2) {
    at += static_cast<unsigned char>(table[i]);
    if (at > offset) break;
    line += static_cast<signed char>(table[i + 1]);
  }
  return line;
}

int LineByDeltas(std::string_view table, int first, int64_t offset) {
  int64_t end = 0;
  int line = first;
  for (size_t i = 0; i + 1 < table.size(); i += 2) {
    end += static_cast<unsigned char>(table[i]);
    const int delta = static_cast<signed char>(table[i + 1]);
    if (delta != kNoLine) line += delta;
    if (offset < end) return delta == kNoLine ? 0 : line;
  }
  return 0;
}

// Reads numbers of six bits a byte, the lowest first; 0x40: another follows.
class Numbers {
 public:
  explicit Numbers(std::string_view table) : table_(table) {}
  bool done() const { return at_ >= table_.size(); }
  uint8_t Byte() { return done() ? 0 : static_cast<uint8_t>(table_[at_++]); }
  void Skip(size_t bytes) { at_ += bytes; }
  uint64_t Unsigned() {
    uint64_t value = 0;
    for (int shift = 0; shift < 60; shift += 6) {
      const uint8_t byte = Byte();
      value |= static_cast<uint64_t>(byte & 0x3f) << shift;
      if ((byte & 0x40) == 0) break;
    }
    return value;
  }
  int Signed() {
    const uint64_t value = Unsigned();
    const int size = static_cast<int>((value >> 1) & 0x3fffffff);
    return (value & 1) != 0 ? -size : size;
  }

 private:
  std::string_view table_;
  size_t at_ = 0;
};

int LineByLocations(std::string_view table, int first, int64_t offset) {
  constexpr int kNone = 15, kLong = 14, kNoColumns = 13, kOneLine = 10;
  constexpr int kUnit = 2;  // bytes
  Numbers numbers(table);
  int64_t end = 0;
  int line = first;
  while (!numbers.done()) {
    const uint8_t head = numbers.Byte();
    if ((head & 0x80) == 0) return 0;  // an entry's first byte alone has that bit
    const int code = (head >> 3) & 15;
    end += static_cast<int64_t>((head & 7) + 1) * kUnit;
    if (code == kLong) {
      line += numbers.Signed();
      for (int i = 0; i < 3; ++i) numbers.Unsigned();  // the last line, and columns
    } else if (code == kNoColumns) {
      line += numbers.Signed();
    } else if (code >= kOneLine && code < kNoColumns) {
      line += code - kOneLine;
      numbers.Skip(2);
    } else if (code < kOneLine) {
      numbers.Skip(1);
    }
    if (offset < end) return code == kNone ? 0 : line;
  }
  return 0;
}

}  // namespace

int LineOfInstruction(LineTable form, std::string_view table, int first, int64_t offset) {
  if (offset < 0) return first;
  switch (form) {
    case LineTable::kLnotab:
      return LineByLnotab(table, first, offset);
    case LineTable::kDeltas:
      return LineByDeltas(table, first, offset);
    case LineTable::kLocations:
      break;
  }
  return LineByLocations(table, first, offset);
}

}  // namespace cohort::launcher
