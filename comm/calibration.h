// What calibration makes of its measurements: figures of the cost model, or nothing where they can't be true.
#pragma once

#include <string>
#include <vector>

#include "comm/tuning.h"

namespace cohort::comm {

// Bytes of the large message that LevelTimes has the time of.
inline constexpr double kCalibrationBytes = 1 << 20;
// Small messages in a burst.
inline constexpr int kCalibrationBurst = 16;

// Microseconds, each from the start of sending to the arrival of a one-byte answer.
struct LevelTimes {
  double round_trip = 0;  // one small message
  double burst = 0;       // kCalibrationBurst of them
  double large = 0;       // one of kCalibrationBytes
};

// The tenth percentile, which other programs of a busy machine disturb little. Reorders `samples`, of which there is at
// least one.
double LowQuantile(std::vector<double>& samples);

// Replaces the figures of `level` by those that the times mean. One that can't be true, as on a machine that does
// something else at the time, stays as it was, and the text returned says so; it is empty where none did. `name` is
// "local" or "remote": how far apart the ranks are.
std::string Adopt(const std::string& name, const LevelTimes& times, LevelTuning* level);

}  // namespace cohort::comm
