#include "cohort/comm/select/calibration.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace cohort::comm {
namespace {

// Bounds of what may be true for any machine. On one host half a millisecond is far beyond the needs of ranks that take
// turns on one CPU; between hosts there may be an ocean.
struct Bounds {
  double most_alpha_us;
  double most_message_us;
  double least_gigabytes_s;
  double most_gigabytes_s;
};
constexpr Bounds kLocal = {500, 200, 0.05, 400};
constexpr Bounds kRemote = {200'000, 5'000, 0.0001, 200};

// To four digits, more than measuring gives.
double Rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

// 1: alike.
double RatioTo(double measured, double reference) {
  const double ratio = measured / reference;
  return ratio > kAlike || ratio < 1 / kAlike ? ratio : 1;
}

class Adoption {
 public:
  explicit Adoption(const std::string& name) : name_(name) {}

  // How much more than the reference was measured; 1 where they are alike, or the measurement is not believed.
  double Ratio(const char* figure, double measured, double reference, double least, double most, double in_force) {
    if (measured >= least && measured <= most) return RatioTo(measured, reference);  // not where it is no number
    char text[160];
    std::snprintf(text, sizeof text, "%s%s.%s=%g stays (%g was measured)", kept_.empty() ? "" : ", ", name_.c_str(),
                  figure, in_force, measured);
    kept_ += text;
    return 1;
  }
  std::string kept() && { return std::move(kept_); }

 private:
  const std::string& name_;
  std::string kept_;
};

void Scale(double ratio, double built_in, double* figure) {
  if (ratio != 1) *figure = Rounded(built_in * ratio);
}

void ScaleRates(double ratio, const DirectTuning& built_in, DirectTuning* direct) {
  Scale(ratio, built_in.gigabytes_s, &direct->gigabytes_s);
  Scale(ratio, built_in.uncached_gigabytes_s, &direct->uncached_gigabytes_s);
}

// Scales the rates of a LevelTuning or a NearTuning.
template <typename Messages>
void ScaleRates(double ratio, const Messages& built_in, Messages* messages) {
  Scale(ratio, built_in.gigabytes_s, &messages->gigabytes_s);
  Scale(ratio, built_in.copied_gigabytes_s, &messages->copied_gigabytes_s);
  Scale(ratio, built_in.uncached_gigabytes_s, &messages->uncached_gigabytes_s);
}

void ScaleRates(double ratio, const WindowTuning& built_in, WindowTuning* window) {
  Scale(ratio, built_in.large_gigabytes_s, &window->large_gigabytes_s);
  Scale(ratio, built_in.large_uncached_gigabytes_s, &window->large_uncached_gigabytes_s);
  ScaleRates(ratio, built_in.direct, &window->direct);
}

}  // namespace

double LowQuantile(std::vector<double>& samples) {
  const auto at = samples.begin() + static_cast<int64_t>(samples.size() / 10);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

std::string Adopt(const std::string& name, const LevelTimes& times, bool ranks_take_turns, Tuning* tuning) {
  const bool local = name == "local";
  const Bounds& bounds = local ? kLocal : kRemote;
  const ProbeFigures& reference = local ? kLocalReference : kRemoteReference;
  const Tuning base;
  const LevelTuning& built_in = local ? base.local : base.remote;
  LevelTuning& level = local ? tuning->local : tuning->remote;
  Adoption adoption(name);
  const double alpha =
      adoption.Ratio("alpha_us", times.round_trip / 2, reference.alpha_us, 0.01, bounds.most_alpha_us, level.alpha_us);
  const double message = adoption.Ratio("message_us", (times.burst - times.round_trip) / (kCalibrationBurst - 1),
                                        reference.message_us, 0.001, bounds.most_message_us, level.message_us);
  const double rate =
      adoption.Ratio("gigabytes_s", kCalibrationBytes / 1e3 / (times.large - times.round_trip), reference.gigabytes_s,
                     bounds.least_gigabytes_s, bounds.most_gigabytes_s, level.gigabytes_s);
  if (!ranks_take_turns) Scale(alpha, built_in.alpha_us, &level.alpha_us);
  Scale(message, built_in.message_us, &level.message_us);
  ScaleRates(rate, built_in, &level);
  if (local) {
    ScaleRates(rate, base.direct, &tuning->direct);
    ScaleRates(rate, base.window, &tuning->window);
    ScaleRates(rate, base.near, &tuning->near);
  }
  return std::move(adoption).kept();
}

void AdoptReduction(double gigabytes_s, Tuning* tuning) {
  Scale(RatioTo(gigabytes_s, kReductionReference), Tuning().reduce_gigabytes_s, &tuning->reduce_gigabytes_s);
}

}  // namespace cohort::comm
