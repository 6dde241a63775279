// Lines of instructions, by tables that Python 3.9, 3.10 and 3.11 made of the same function, and layouts of versions.
#include "cohort/launcher/agent/stacks/python_lines.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

// As dis.findlinestarts has them: an offset and the line that begins there.
using Starts = std::vector<std::pair<int, int>>;

void Expect(LineTable form, const std::string& table, const Starts& starts, int end) {
  for (size_t i = 0; i < starts.size(); ++i) {
    const int next = i + 1 < starts.size() ? starts[i + 1].first : end;
    for (int offset = starts[i].first; offset < next; offset += 2) {
      EXPECT_EQ(LineOfInstruction(form, table, 1, offset), starts[i].second) << offset;
    }
  }
  EXPECT_EQ(LineOfInstruction(form, table, 7, -1), 7) << "before the first instruction";
}

TEST(PythonLines, LinesAreThoseOfThePythonThatMadeTheTable) {
  using std::string_literals::operator""s;
  const Starts starts = {{0, 2}, {4, 3}, {10, 4}, {12, 3}, {18, 6}, {22, 8}, {24, 6}, {28, 9}};
  Expect(LineTable::kLnotab, "\x00\x01\x04\x01\x06\x01\x02\xff\x06\x03\x04\x02\x02\xfe\x04\x03"s, starts, 32);
  Expect(LineTable::kDeltas, "\x04\x01\x06\x01\x02\x01\x06\xff\x04\x03\x02\x02\x04\xfe\x04\x03"s, starts, 32);
  Expect(LineTable::kLocations,
         "\x80\x00\xd8\x07\x08\xf0\x00\x02\x05\x1c\xf0\x02\x01\x10\x1c\xf0\x00\x01\x10\x1c\xd8\x19\x1a\xf0\x03\x01\x10"
         "\x1c\xf1\x00\x01\x10\x1c\xf4\x00\x01\x10\x1c\xf0\x00\x01\x09\x1c\xf5\x06\x00\x09\x0a\x88\x21\xe0\x0a\x0b\xf1"
         "\x05\x02\x09\x0d\xf4\x00\x02\x09\x0d\x80\x41\xf0\x06\x00\x0c\x0d\x80\x48"s,
         {{0, 1}, {2, 2}, {6, 3}, {10, 4}, {12, 3}, {30, 6}, {44, 8}, {46, 6}, {62, 9}}, 66);
}

TEST(PythonLines, AnyBytesGiveALine) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string table(random() % 40, '\0');
    for (char& byte : table) byte = static_cast<char>(random());
    for (const LineTable form : {LineTable::kLnotab, LineTable::kDeltas, LineTable::kLocations}) {
      (void)LineOfInstruction(form, table, 1, static_cast<int>(random() % 300) - 10);
    }
  }
  EXPECT_EQ(LineOfInstruction(LineTable::kDeltas, "", 5, 0), 0);
}

TEST(PythonLayout, TheLayoutOfKnownVersionsIsFound) {
  for (const int minor : {8, 9, 10, 11, 12}) {
    EXPECT_TRUE(LayoutOfVersion(0x030000f0u | static_cast<unsigned>(minor) << 16)) << minor;
  }
  for (const uint64_t version : {0x02071200u, 0x030700f0u, 0x030d00f0u, 0x031000f0u, 0u}) {
    EXPECT_FALSE(LayoutOfVersion(version)) << version;
  }
}

TEST(PythonLayout, ALayoutThatAPythonPublishesIsTakenWhereItsOrderIsKnown) {
  std::vector<uint64_t> numbers(kDebugOffsets);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  EXPECT_FALSE(LayoutFromOffsets(numbers));
  std::memcpy(numbers.data(), "xdebugpy", sizeof numbers[0]);
  numbers[1] = 0x030e00f0;
  numbers[2] = 0;
  const auto layout = LayoutFromOffsets(numbers);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->first_interpreter, 5u);
  EXPECT_EQ(layout->frame, 26u);
  EXPECT_EQ(layout->other_text, 96u);
  EXPECT_EQ(layout->copies, 0u);
  numbers[2] = 1;  // without a global lock
  EXPECT_EQ(LayoutFromOffsets(numbers)->copies, 49u);
  numbers[1] = 0x030d00f0;
  EXPECT_EQ(LayoutFromOffsets(numbers)->frame, 23u);
  numbers[1] = 0x031200f0;
  EXPECT_FALSE(LayoutFromOffsets(numbers));
  numbers[1] = 0x030e00f0;
  numbers[40] = 1u << 30;
  EXPECT_FALSE(LayoutFromOffsets(numbers)) << "no offset of a structure";
}

}  // namespace
}  // namespace cohort::launcher
