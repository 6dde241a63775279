// Draws a schedule as the papers do: a line for each rank, time to the right.
#pragma once

#include <string>

#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"
#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"

namespace cohort::trainer {

// One column for each unit of time, so costs should be small. A pass is drawn as its kind and micro-batch, in front of
// them the stage where a rank has several, and = for each further unit that it takes; a dot is idle time.
//
//   rank 0  F0 F1 F2 F3  .  .  . B0  = B1  = ...
//   rank 1   . F0 F1 F2 F3  . B0  =  . ...
std::string DrawSchedule(const Schedule& schedule, const Timing& timing);

}  // namespace cohort::trainer
