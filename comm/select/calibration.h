// Turns the measurements of calibration into figures of the cost model, or into nothing if they can't be true.
#pragma once

#include <string>
#include <vector>

#include "cohort/comm/select/tuning.h"

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

// Results of the same measurements on the machine that the built-in figures are fitted to (AMD EPYC, 2 CPUs; hosts
// simulated, TCP over loopback).
struct ProbeFigures {
  double alpha_us = 0;
  double message_us = 0;
  double gigabytes_s = 0;
};
inline constexpr ProbeFigures kLocalReference = {.alpha_us = 0.24, .message_us = 0.245, .gigabytes_s = 13.4};
inline constexpr ProbeFigures kRemoteReference = {.alpha_us = 8.4, .message_us = 5.65, .gigabytes_s = 4.3};
// A result that differs by less than this factor is the reference within the noise of a short measurement.
inline constexpr double kAlike = 2;

// Scales the built-in figures of a level ("local" or "remote") by how far the times differ from the reference: two
// ranks that are alone see other latencies and rates than a collective that loads all, so what they see can't replace
// figures that were fitted to collectives. The rate scales every rate of the level, on one host those of direct access
// and of windows too. What is alike leaves the figure in force as it is, and so does what can't be true, as on a
// machine that does something else at the time: the text returned names the latter, and is empty where there is none.
// `ranks_take_turns`: on CPUs that they share; their latency is then that of turns, and alpha stays as well.
std::string Adopt(const std::string& name, const LevelTimes& times, bool ranks_take_turns, Tuning* tuning);
// The same for the rate of a reduction in cached memory.
inline constexpr double kReductionReference = 72;  // gigabytes a second
void AdoptReduction(double gigabytes_s, Tuning* tuning);

}  // namespace cohort::comm
