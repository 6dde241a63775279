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
// calls than the tape holds, and says so on stderr. All handlers of exit run, and on_exit's that were there before see
// the 1. Other ends stay as they are. A forked child does not answer for replays of its parent. Any thread may call.
//
// A program with a thread that calls until the end makes a number of calls that depends on timing. Its replay may end
// with 1 although nothing differs.
void CheckAtExit(std::shared_ptr<const ReplayProgress> progress);

}  // namespace cohort::runtime
