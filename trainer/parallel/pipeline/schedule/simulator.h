// Times a schedule, in exact units: costs are whole numbers, and so are the results.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"

namespace cohort::trainer {

// The time of each kind of pass.
struct PassCosts {
  int64_t forward = 1;
  int64_t backward = 2;
  int64_t input_gradient = 1;
  int64_t weight_gradient = 1;

  int64_t Of(ActionKind kind) const;
};

struct Costs {
  PassCosts pass;                   // of every stage
  std::vector<PassCosts> by_stage;  // instead, if not empty: one for each stage
  int64_t message = 0;              // from one rank to another
  // True: a send waits for its receiver, and a turn for all of its messages. False: messages are sent and received
  // beside the passes, and a pass waits only for its own.
  bool sends_wait = false;
};

// When an action takes place. Messages and the actions on shards take no time of the rank.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
};

struct Timing {
  int64_t total = 0;                       // from the first pass to the end of the last
  std::vector<int64_t> busy;               // by rank: the time of its passes
  std::vector<std::vector<Span>> by_rank;  // for each action of the schedule

  // The ranks' time without a pass, out of all of their time.
  Share idle() const;
};

// Runs the schedule. It may lack messages, unless sends wait. kInvalidArgument if a rank stands still: the message
// names it, its action, and what it waits for.
absl::StatusOr<Timing> SimulateSchedule(const Schedule& schedule, const Costs& costs);

}  // namespace cohort::trainer
