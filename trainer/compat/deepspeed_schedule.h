// The schedules of a DeepSpeed configuration, after DeepSpeed 0.19.8's lr_schedules.py. Pure functions of the step.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "cohort/trainer/compat/deepspeed_config.h"

namespace cohort::trainer {

// Returns the learning rate of the optimizer's step `step`, from 0. Without a scheduler it is `config.optimizer.lr`.
// DeepSpeed sets the rate after each step: step 0 has the schedule's smallest rate (0 under WarmupCosineLR), and step 1
// the first one of its formula.
double LearningRateAt(const DeepSpeedConfig& config, int64_t step);

// Returns Adam's betas of that step where the schedule moves them: under OneCycle with cycle_momentum. As in DeepSpeed,
// the second is 0.99, and the first begins at cycle_min_mom and goes on from cycle_max_mom.
std::optional<std::pair<double, double>> BetasAt(const DeepSpeedConfig& config, int64_t step);

}  // namespace cohort::trainer
