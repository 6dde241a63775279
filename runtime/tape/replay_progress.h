// How far a replay has come, until the process ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace cohort::runtime {

struct ReplayProgress {
  int rank = 0;                  // the recorded one
  size_t calls = 0;              // that the tape holds
  std::atomic<size_t> begun{0};  // of them, by the program
};

// From now on a process that exits with 0, by exit or from main, ends with 1 instead where the program has begun fewer
// calls than the tape holds, and says so on stderr. Handlers of exit that were there before are left out then. Other
// ends, and those of forked children, stay as they are. Any thread may call.
void CheckAtExit(std::shared_ptr<const ReplayProgress> progress);

}  // namespace cohort::runtime
