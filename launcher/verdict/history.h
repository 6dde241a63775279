// A job over a time, as far as it is known: the input of a verdict. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/launcher/trace/call_meetings.h"
#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/launcher/trace/traced_range.h"

namespace cohort::launcher {

// A rank whose process runs and has not joined the job: it has not come to Runtime::Init (dlaunch.init() in Python).
struct UnjoinedRank {
  uint32_t rank = 0;
  std::string node;                     // its name
  int64_t pid = 0;                      // of its process, on that node
  std::vector<std::string> doing = {};  // what the process does, in lines; empty: not known
};

// All times are by one clock.
struct History {
  std::vector<std::string> nodes;      // by TracedCall::node
  std::vector<TracedCall> calls;       // in any order; kStarted: it had not ended when the history did
  std::vector<RankState> states;       // in any order
  std::vector<StepMark> marks;         // none: steps are found by the calls
  std::vector<UnjoinedRank> unjoined;  // at the end, by rank, where others have joined; none: nobody knows, or all have
};

}  // namespace cohort::launcher
