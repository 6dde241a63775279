// The places where CPython keeps what a stack is made of, for the versions that are known. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cohort::launcher {

// Forms of the table that maps instructions to lines.
enum class LineTable {
  kLnotab,     // to 3.9: pairs of an increment of the address and one of the line
  kDeltas,     // 3.10: pairs of a length and an increment of the line
  kLocations,  // from 3.11: entries of a variable length
};

// Offsets in bytes from the beginning of the structure that has the field; 0 stands for absent where it says so.
struct PythonLayout {
  // _PyRuntime, PyInterpreterState, PyThreadState
  uint64_t first_interpreter = 0, next_interpreter = 0, first_thread = 0, next_thread = 0;
  uint64_t collecting = 0;  // of an interpreter: an int, not 0 while it collects garbage; 0: absent
  uint64_t thread_id = 0;
  uint64_t native_thread_id = 0;  // the kernel's; 0: absent
  uint64_t frame = 0;             // of a thread: its innermost frame, or a structure that has that at `frame_behind`
  std::optional<uint64_t> frame_behind;
  // a frame
  uint64_t previous = 0, code = 0, instruction = 0;
  uint64_t owner = 0;  // a byte; 0: absent
  // a code object
  uint64_t file_name = 0, name = 0, first_line = 0, line_table = 0;
  uint64_t instructions = 0;       // where they begin, which `instruction` points into; 0: that is a number
  uint64_t instruction_bytes = 1;  // of one, where it is a number
  LineTable table_form = LineTable::kLocations;
  // Builds without a global lock: a thread has a copy of the instructions.
  uint64_t copies = 0, copy_index = 0;  // of a code object and of a frame; 0: there are none
  // str and bytes
  uint64_t text_length = 16, text_state = 32, ascii_text = 0, other_text = 0, bytes_size = 16, bytes = 32;
};

// The layout of a version as PY_VERSION_HEX has it: 3.8 to 3.12. Nothing for another.
std::optional<PythonLayout> LayoutOfVersion(uint64_t version);

// How many numbers LayoutFromOffsets looks at.
inline constexpr size_t kDebugOffsets = 81;
// The layout that Python 3.13 and 3.14 tell themselves: the numbers at the beginning of _PyRuntime. Nothing where these
// are not such, or of another version.
std::optional<PythonLayout> LayoutFromOffsets(const std::vector<uint64_t>& numbers);

}  // namespace cohort::launcher
