// A timed schedule as a trace: a slice for each pass, and an arrow from a pass to the one of another rank that waited
// for it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"
#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"

namespace cohort::tools {

// Writes the trace; a unit of time is a microsecond. Returns PredictionTrace::place. The errors of PredictionTrace.
absl::StatusOr<std::string> TraceSchedule(const std::string& path, const trainer::Schedule& schedule,
                                          const trainer::Timing& timing);

}  // namespace cohort::tools
