// The state of a rank's program over a time, as its agent has sampled it from /proc: for traces, and for the question
// why others waited for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "cohort/v1/trace.pb.h"

namespace cohort::launcher {

// The activity of a program. The numbers are those of v1::StateShape.
enum class Activity : uint8_t {
  kUnknown = 0,
  kComputes = 1,    // it uses a CPU, or waits for threads of its own that do
  kCollects = 2,    // the same, in Python's garbage collector
  kReads = 3,       // from files, pipes and networks, or it waits until it can
  kWrites = 4,      // the same
  kLocks = 5,       // waits for a lock, or for other threads that use no CPU
  kChildren = 6,    // waits for the end of a process
  kSleeps = 7,      // has asked for it
  kKernel = 8,      // is in the kernel for another reason
  kStopped = 9,     // by a signal
  kDebugged = 10,   // stopped by a debugger
  kSwaps = 11,      // waits for its memory, which the kernel has put on a disk
  kThrottled = 12,  // its control group has used up its share of CPU time
  kQueued = 13,     // is ready to run, and other programs have the CPUs
};
inline constexpr size_t kActivities = 14;

// "computes", "waits for a lock", ... Each is another.
std::string_view ActivityName(Activity activity);
std::optional<Activity> ActivityOfName(std::string_view name);

// One state of a rank. In a call of Cohort's in which the rank waits it has none, unless the program is held up there.
struct RankState {
  uint32_t rank = 0;
  size_t node = 0;
  std::shared_ptr<const v1::StateShape> shape;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  // The parts of that time in which it was on a CPU, ready to run without one, and throttled, as far as the kernel
  // tells.
  uint64_t computed_ns = 0;
  uint64_t queued_ns = 0;
  uint64_t throttled_ns = 0;

  Activity activity() const;
};

}  // namespace cohort::launcher
