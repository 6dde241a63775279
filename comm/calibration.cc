#include "comm/calibration.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace cohort::comm {
namespace {

// What may be true of any machine. On one host half a millisecond is far beyond what ranks need that take turns on one
// CPU; between hosts there may be an ocean.
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

class Adoption {
 public:
  explicit Adoption(const std::string& name) : name_(name) {}

  void Take(const char* figure, double measured, double least, double most, double* value) {
    if (measured >= least && measured <= most) {  // false for what is no number, too
      *value = Rounded(measured);
      return;
    }
    char text[160];
    std::snprintf(text, sizeof text, "%s%s.%s=%g stays (%g was measured)", kept_.empty() ? "" : ", ", name_.c_str(),
                  figure, *value, measured);
    kept_ += text;
  }
  std::string kept() && { return std::move(kept_); }

 private:
  const std::string& name_;
  std::string kept_;
};

}  // namespace

double LowQuantile(std::vector<double>& samples) {
  const auto at = samples.begin() + static_cast<int64_t>(samples.size() / 10);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

std::string Adopt(const std::string& name, const LevelTimes& times, LevelTuning* level) {
  const Bounds& bounds = name == "local" ? kLocal : kRemote;
  Adoption adoption(name);
  adoption.Take("alpha_us", times.round_trip / 2, 0.01, bounds.most_alpha_us, &level->alpha_us);
  adoption.Take("message_us", (times.burst - times.round_trip) / (kCalibrationBurst - 1), 0.001, bounds.most_message_us,
                &level->message_us);
  adoption.Take("gigabytes_s", kCalibrationBytes / 1e3 / (times.large - times.round_trip), bounds.least_gigabytes_s,
                bounds.most_gigabytes_s, &level->gigabytes_s);
  return std::move(adoption).kept();
}

}  // namespace cohort::comm
