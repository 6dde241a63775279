// A turn: messages of a rank that follow each other with nothing between them (schedule.h), and how they are started.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"

namespace cohort::trainer {

// The turn that begins with number `at` of `actions`, or nothing if that is no message.
std::span<const Action> TurnAt(std::span<const Action> actions, size_t at);

// The sends and the receives in `now` are started as one batch. The receives in `later` are a second batch: the sizes
// of what they receive are still to come, and others may need the sends of this turn before they can tell them.
struct TurnParts {
  std::vector<Action> sends;
  std::vector<Action> now;
  std::vector<Action> later;
};

// `knows_output`: whether this rank knows the sizes of a stage's output. Gradients have those of the output that they
// belong to, which has been sent before.
TurnParts PartsOf(std::span<const Action> turn, const std::function<bool(int stage)>& knows_output);

}  // namespace cohort::trainer
