// Proves a schedule: whatever passes can be run, on any machine, and gives every gradient once.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"

namespace cohort::trainer {

struct ScheduleReport {
  // By rank: the most forward passes, one for each stage and micro-batch, whose backward pass is still to end.
  std::vector<int> peak_activations;
  int64_t passes = 0;    // of all ranks
  int64_t messages = 0;  // of all ranks, each counted once
  int64_t turns = 0;     // of the rank that has most
};

// Proves that
//
//   - sizes fit, and every action is on the rank that has its stage;
//   - each stage and micro-batch goes forward once, and backward once: whole (B) or in parts (I, then W);
//   - each border between stages of different ranks is crossed by one send and one receive a direction, others by none;
//   - a rank's actions come in an order in which each has what it needs;
//   - the messages between two ranks, in one direction, are received in the order in which they are sent, also where a
//     turn has a stage's first output, whose sizes go ahead of it;
//   - no rank stands still where a send waits for its receiver and a turn for all of its messages;
//   - parameters are gathered during every pass and freed at the end, and gradients are reduced once, after the last.
//
// kInvalidArgument otherwise; the message names the rank and the action. Takes time in proportion to the actions.
absl::StatusOr<ScheduleReport> CheckSchedule(const Schedule& schedule);

}  // namespace cohort::trainer
