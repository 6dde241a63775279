// dlaunch's standard input where rank 0 reads it itself: an agent of dlaunch's own machine has it, and so has its rank.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// With this argument an agent has that input as its descriptor kInheritedDescriptor (base/piped_process.h).
inline constexpr char kRankInputArgument[] = "--rank-input";

class RankInputFile {
 public:
  // The input of the agent with these arguments: none without kRankInputArgument. No program but rank 0 inherits it.
  static RankInputFile Inherited(int argc, char** argv);

  // For the rank of that epoch, not owned; -1: there is none. A plain file is read again from where dlaunch found it.
  int OfEpoch(uint64_t epoch) const;

 private:
  runtime::FileDescriptor fd_;
  off_t begin_ = -1;  // of a plain file
};

}  // namespace cohort::launcher
