#include "cohort/launcher/agent/stacks/python_layout.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace cohort::launcher {
namespace {

constexpr char kCookie[] = "xdebugpy";
constexpr uint64_t kMostOffset = 1u << 20;  // structures are smaller

// PyASCIIObject to 3.11, and from 3.12 on; the other has 24 and 16 bytes more.
constexpr uint64_t kOldText = 48, kText = 40;

PythonLayout Old(uint64_t instruction, uint64_t instruction_bytes, LineTable form) {
  return {.first_interpreter = 32,
          .first_thread = 8,
          .next_thread = 8,
          .thread_id = 176,
          .frame = 24,
          .frame_behind = std::nullopt,
          .previous = 24,
          .code = 32,
          .instruction = instruction,
          .file_name = 104,
          .name = 112,
          .first_line = 40,
          .line_table = 120,
          .instruction_bytes = instruction_bytes,
          .table_form = form,
          .ascii_text = kOldText,
          .other_text = kOldText + 24};
}

// Places of the numbers that Python 3.13 tells; 3.14 has more in between.
struct Places {
  size_t next_interpreter, first_thread, next_thread, frame, thread_id, native_thread_id;
  size_t previous, code, instruction, owner, copy_index;
  size_t file_name, name, line_table, first_line, instructions, copies;
  size_t bytes_size, bytes, text_state, text_length, ascii_text;
  size_t collector, collecting;  // of an interpreter, and in that; 0: not known
};

constexpr Places k313 = {.next_interpreter = 8,
                         .first_thread = 9,
                         .next_thread = 21,
                         .frame = 23,
                         .thread_id = 24,
                         .native_thread_id = 25,
                         .previous = 29,
                         .code = 30,
                         .instruction = 31,
                         .owner = 33,
                         .copy_index = 0,
                         .file_name = 35,
                         .name = 36,
                         .line_table = 38,
                         .first_line = 39,
                         .instructions = 43,
                         .copies = 0,
                         .bytes_size = 65,
                         .bytes = 66,
                         .text_state = 68,
                         .text_length = 69,
                         .ascii_text = 70,
                         .collector = 10,
                         .collecting = 72};
constexpr Places k314 = {.next_interpreter = 8,
                         .first_thread = 9,
                         .next_thread = 24,
                         .frame = 26,
                         .thread_id = 27,
                         .native_thread_id = 28,
                         .previous = 32,
                         .code = 33,
                         .instruction = 34,
                         .owner = 36,
                         .copy_index = 38,
                         .file_name = 40,
                         .name = 41,
                         .line_table = 43,
                         .first_line = 44,
                         .instructions = 48,
                         .copies = 49,
                         .bytes_size = 75,
                         .bytes = 76,
                         .text_state = 78,
                         .text_length = 79,
                         .ascii_text = 80,
                         .collector = 0,
                         .collecting = 0};

}  // namespace

std::optional<PythonLayout> LayoutOfVersion(uint64_t version) {
  if (version >> 24 != 3) return std::nullopt;
  PythonLayout layout{.first_interpreter = 40,
                      .next_thread = 8,
                      .frame = 56,
                      .frame_behind = std::nullopt,
                      .instruction = 56,
                      .file_name = 112,
                      .name = 120,
                      .line_table = 136};
  switch ((version >> 16) & 0xff) {
    case 8:
      return Old(104, 1, LineTable::kLnotab);
    case 9:
      layout = Old(104, 1, LineTable::kLnotab);
      layout.collecting = 816;
      return layout;
    case 10:
      layout = Old(96, 2, LineTable::kDeltas);
      layout.collecting = 816;
      return layout;
    case 11:
      layout.collecting = 848;
      layout.first_thread = 16;
      layout.thread_id = 152;
      layout.native_thread_id = 160;
      layout.frame_behind = 8;
      layout.previous = 48;
      layout.code = 32;
      layout.owner = 69;
      layout.first_line = 72;
      layout.instructions = 184;
      layout.ascii_text = kOldText;
      layout.other_text = kOldText + 24;
      return layout;
    case 12:
      layout.collecting = 312;
      layout.first_thread = 72;
      layout.thread_id = 136;
      layout.native_thread_id = 144;
      layout.frame_behind = 0;
      layout.previous = 8;
      layout.code = 0;
      layout.owner = 70;
      layout.first_line = 68;
      layout.instructions = 192;
      layout.ascii_text = kText;
      layout.other_text = kText + 16;
      return layout;
    default:
      return std::nullopt;
  }
}

std::optional<PythonLayout> LayoutFromOffsets(const std::vector<uint64_t>& numbers) {
  if (numbers.size() < kDebugOffsets || std::memcmp(numbers.data(), kCookie, sizeof(uint64_t)) != 0) {
    return std::nullopt;
  }
  if (numbers[1] >> 24 != 3) return std::nullopt;
  const uint64_t minor = (numbers[1] >> 16) & 0xff;
  if (minor != 13 && minor != 14) return std::nullopt;
  const Places& at = minor == 13 ? k313 : k314;
  const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(std::max(at.ascii_text, at.collecting)) + 1;
  if (std::any_of(numbers.begin() + 3, end, [](uint64_t number) { return number > kMostOffset; })) return std::nullopt;
  const bool copies = numbers[2] != 0 && at.copies != 0;
  return PythonLayout{.first_interpreter = numbers[5],
                      .next_interpreter = numbers[at.next_interpreter],
                      .first_thread = numbers[at.first_thread],
                      .next_thread = numbers[at.next_thread],
                      .collecting = at.collecting == 0 ? 0 : numbers[at.collector] + numbers[at.collecting],
                      .thread_id = numbers[at.thread_id],
                      .native_thread_id = numbers[at.native_thread_id],
                      .frame = numbers[at.frame],
                      .frame_behind = std::nullopt,
                      .previous = numbers[at.previous],
                      .code = numbers[at.code],
                      .instruction = numbers[at.instruction],
                      .owner = numbers[at.owner],
                      .file_name = numbers[at.file_name],
                      .name = numbers[at.name],
                      .first_line = numbers[at.first_line],
                      .line_table = numbers[at.line_table],
                      .instructions = numbers[at.instructions],
                      .copies = copies ? numbers[at.copies] : 0,
                      .copy_index = copies ? numbers[at.copy_index] : 0,
                      .text_length = numbers[at.text_length],
                      .text_state = numbers[at.text_state],
                      .ascii_text = numbers[at.ascii_text],
                      .other_text = numbers[at.ascii_text] + 16,
                      .bytes_size = numbers[at.bytes_size],
                      .bytes = numbers[at.bytes]};
}

}  // namespace cohort::launcher
