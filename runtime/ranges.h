// Names what this process does, for traces: spans of time, and the beginnings of steps.
//
//   for (uint64_t step = 0; step < steps; ++step) {
//     runtime::MarkStep(step);
//     const runtime::Range range("load the batch");
//     ...
//   }
//
// They go to the runtime that the process has joined with, the latest one where there are several. Without a runtime,
// after Finalize and in a forked child nothing is recorded. Any thread may use them, and they never block.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "cohort/runtime/ranges/range_ring.h"

namespace cohort::runtime {

class Segment;

// A step of the program begins: `dlaunch why` counts steps by these numbers, and does not search for them. The step
// ends with the mark of the next number. Runtime::OnPreemption marks its steps itself. Costs about 50 ns.
void MarkStep(uint64_t number);

// Whether somebody reads ranges. One or two loads.
inline bool RangesWanted();

// The time from its making to its end. While no trace is taken it costs a look at a word; otherwise it takes part in
// the trace if the trace had begun before it. Ranges of a thread that are on one lane end in the opposite order of
// their beginnings.
class Range {
 public:
  // On the line of this thread. The name is copied, and cut to 87 bytes.
  explicit Range(std::string_view name, RangeLane lane = RangeLane::kProgram, uint64_t number = kNoNumber) {
    if (RangesWanted()) [[unlikely]]
      Begin(name, lane, number);
  }
  // On a line of its own, where it may begin and end on different threads. A range of the same line must have ended.
  Range(std::string_view name, RangeLane lane, uint64_t number, uint16_t line) {
    if (RangesWanted()) [[unlikely]]
      BeginOn(line, name, lane, number);
  }
  ~Range() {
    if (record_.has_value()) [[unlikely]]
      End();
  }
  Range(Range&& other) noexcept : record_(std::exchange(other.record_, std::nullopt)) {}
  Range& operator=(Range&&) = delete;
  // Ends it without recording it.
  void Drop() { record_.reset(); }

 private:
  void Begin(std::string_view name, RangeLane lane, uint64_t number);
  void BeginOn(uint16_t line, std::string_view name, RangeLane lane, uint64_t number);
  void End();

  std::optional<RangeRecord> record_;  // while it is recorded
};

// For the runtime: the ring of this process' rank. `owner` names it.
// AttachRanges fails with the system's error where the ring can't be mapped.
absl::Status AttachRanges(Segment& segment, const void* owner);
// Does nothing where another one has attached since.
void DetachRanges(const void* owner);

namespace internal {
// Mapped for good once it is set: see ranges.cc.
extern std::atomic<RangeMemory*> g_ranges;
}  // namespace internal

inline bool RangesWanted() {
  const RangeMemory* const ranges = internal::g_ranges.load(std::memory_order_acquire);
  return ranges != nullptr && ranges->wanted.load(std::memory_order_relaxed) != 0;
}

}  // namespace cohort::runtime
