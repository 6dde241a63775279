// The system call in which a thread sleeps, by the text of /proc/PID/syscall. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/launcher/trace/rank_activity.h"

namespace cohort::launcher {

struct BlockingCall {
  std::string name;                       // "futex", "system call 17"
  Activity activity = Activity::kKernel;  // the purpose of it, where that is known
  bool of_descriptor = false;             // its first argument is a descriptor
  uint64_t first_argument = 0;
};

// Nothing where the thread runs, is in no system call, or the kernel does not tell. restart_syscall, as which an
// interrupted sleep goes on, says nothing either.
std::optional<BlockingCall> ParseBlockingCall(const std::string& text);

}  // namespace cohort::launcher
