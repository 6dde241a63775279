// A job over a time, as far as it is known: the input of a verdict. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/launcher/trace/call_meetings.h"
#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/launcher/trace/traced_range.h"

namespace cohort::launcher {

// All times are by one clock.
struct History {
  std::vector<std::string> nodes;  // by TracedCall::node
  std::vector<TracedCall> calls;   // in any order; kStarted: it had not ended when the history did
  std::vector<RankState> states;   // in any order
  std::vector<StepMark> marks;     // none: steps are found by the calls
};

}  // namespace cohort::launcher
