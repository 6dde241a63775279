// A rank's ring of ranges: named spans of its program's time, and the steps that it has marked. Any thread of the rank
// writes, others read at any time, also after the rank's death.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace cohort::runtime {

// The parts of a program, each with lines of its own in a trace. Numbers stay as they are: traces are made of them.
enum class RangeLane : uint16_t {
  kSteps = 0,        // marks: `number` is the step's, and start and end are equal
  kProgram = 1,      // the user's; a line for each thread
  kPasses = 2,       // forward, backward, optimizer; a line for each thread
  kStages = 3,       // micro-batches in the stages of a pipeline; a line for each thread
  kBuckets = 4,      // gradients on their way; a line for each bucket
  kCheckpoints = 5,  // a line for each thread
};
inline constexpr uint16_t kRangeLanes = 6;
inline constexpr uint16_t kRangeLines = 64;  // of a lane; further ones share these
inline constexpr uint64_t kNoNumber = ~uint64_t{0};

// A range that has ended, as plain bytes.
struct RangeRecord {
  uint64_t start_ns = 0;  // steady clock
  uint64_t end_ns = 0;
  uint64_t number = kNoNumber;  // of the step, bucket or micro-batch
  RangeLane lane = RangeLane::kProgram;
  uint16_t line = 0;  // below kRangeLines
  uint32_t unused = 0;
  char name[88] = {};  // cut; NUL-terminated

  void set_name(std::string_view text);
};
static_assert(sizeof(RangeRecord) == 120 && std::is_trivially_copyable_v<RangeRecord>);

// A slot's `version` is 2 * ticket, odd while it is written (2 * ticket - 1); 0: never used.
inline constexpr int kRangeWords = sizeof(RangeRecord) / 8;
struct alignas(64) RangeSlot {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> words[kRangeWords];
};
inline constexpr uint64_t kRangeRecords = 511;  // fills 16 pages
struct RangeMemory {
  // Not 0 while somebody reads ranges. The agent writes it. Steps are recorded in any case.
  alignas(64) std::atomic<uint64_t> wanted;
  std::atomic<uint64_t> tickets;  // handed out so far
  RangeSlot slots[kRangeRecords];
};
static_assert(sizeof(RangeSlot) == 128 && sizeof(RangeMemory) == 65472);

// Records a range. Any number of threads at once; never blocks. A record is dropped where another thread is still
// writing the one that was handed out a whole ring before. Its ticket stays without a record, so that readers count it.
void AddRange(RangeMemory* memory, const RangeRecord& record);

// The record with this ticket; nothing where it is not written, being written, or overwritten. The contents are not
// trusted: lane and line are within their bounds, and the name ends.
std::optional<RangeRecord> RangeAt(const RangeMemory* memory, uint64_t ticket);

}  // namespace cohort::runtime
