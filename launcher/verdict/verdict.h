// The verdict on a job's time: which rank the others waited for, how long, and what it did meanwhile. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/verdict/history.h"
#include "cohort/launcher/verdict/reason.h"
#include "cohort/launcher/verdict/steps.h"

namespace cohort::launcher {

// The one who took the time, and why.
struct Culprit {
  std::vector<uint32_t> ranks;     // the one with most of it first; none: the call itself took it, on `nodes`
  std::vector<std::string> nodes;  // of these ranks; or, without one, of those in the call
  bool in_call = false;            // not before a call but inside it
  uint64_t lost_ns = 0;            // what it cost: the step, every step, or so far
  std::vector<uint32_t> waiting;   // the ranks that waited for it, directly or through others
  uint64_t waited_ns = 0;          // by the one that waited longest
  std::string call, site;          // before which it took the time, or in which
  std::string after;               // the call site before; empty: not known
  Reason reason;
  double sure = 0;  // that these ranks are the cause, from 0 to 1
  // These are the same ranks, if they have not joined the job. Then nothing but the waits is known above.
  std::vector<UnjoinedRank> unjoined;
  // Without ranks: the number of the call's `members` that have made no known call of its group. Nobody knows which
  // they are; `unjoined` then holds all ranks that have not joined, which may be among them.
  size_t unseen = 0;
  size_t members = 0;
  bool unknown = false;  // the missing members have no call of any group, and no state
};

struct Verdict {
  enum class Kind {
    kNothing,    // no rank stands out
    kWaitsNow,   // ranks waited when the history ended, or their calls failed, and had for long
    kSlowStep,   // `step` took longer than usual
    kEveryStep,  // the usual time of steps is long for the sake of these ranks
    kAllOfIt,    // no steps are known: of the whole time
  };
  Kind kind = Kind::kNothing;
  bool until_failure = false;  // kWaitsNow: the calls have failed since
  std::optional<Culprit> culprit;

  size_t ranks = 0;
  size_t calls = 0;
  uint64_t length_ns = 0;  // of the history
  Steps::Source source = Steps::Source::kNone;
  size_t steps = 0;
  uint64_t first_step = 0, last_step = 0;  // numbers
  uint64_t usual_ns = 0;                   // of a step, the median
  // The step that was asked for, or the slowest one of which most is known, where that is the verdict.
  struct StepTime {
    uint64_t number = 0;
    uint64_t ns = 0;
    std::optional<uint32_t> rank;  // that is to blame
  };
  std::optional<StepTime> step;
  // The steps that took longer than usual, without those whose delay is small beside that of the others.
  size_t slow_steps = 0;
  uint64_t slow_lost_ns = 0;   // by them, beyond the usual time
  std::vector<StepTime> slow;  // the slowest of them, the slowest first
  double in_calls = 0;         // the part of the usual step in which the calls themselves ran, from 0 to 1
};

// `step`: of that alone. kNotFound: there are no calls, and no ranks that have not joined. kOutOfRange: no such step is
// known, and which are.
absl::StatusOr<Verdict> FindVerdict(const History& history, std::optional<uint64_t> step = std::nullopt);

}  // namespace cohort::launcher
