// Lowering completes an order of F, B, I and W: it adds messages, unshard, reshard and reduce.
#pragma once

#include "absl/status/statusor.h"
#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"

namespace cohort::trainer {

// Adds what `schedule`, which has computations only, lacks:
//
//   - a send directly after the pass that makes a message, and its receive in the receiver's first turn that begins no
//     earlier, by the clock of a simulation in which F, I and W take one unit and B two;
//   - unshard before a stage's first pass, reduce and reshard after its last.
//
// No rank can stand still in the result, even where a send waits for its receiver and a turn for all of its messages.
// Proof: give each turn the time at which the pass after it begins. A turn waits for passes, on its own rank and its
// peers', that begin before that time, and each of these waits for turns of an earlier time only.
//
// kInvalidArgument if a pass waits for one that never comes; the message names rank and action.
absl::StatusOr<Schedule> Lower(Schedule schedule);

// The forward passes of a schedule alone, for evaluation: with messages, unshard and reshard, without reduce.
// kInvalidArgument as above.
absl::StatusOr<Schedule> ForwardOnly(const Schedule& schedule);

}  // namespace cohort::trainer
