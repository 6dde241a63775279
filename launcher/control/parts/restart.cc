#include "cohort/launcher/control/parts/restart.h"

#include <algorithm>

namespace cohort::launcher {

std::string RestartPolicy::WhyNot(const v1::JobReport& report, const std::string& lacking) const {
  if (!lacking.empty()) return lacking;
  for (const v1::RankExit& exit : report.exits()) {
    if (!exit.started()) return "what could not be executed would fail again";
  }
  if (restarts_ < max_restarts_) return "";
  return "it has been restarted " + std::to_string(restarts_) + (restarts_ == 1 ? " time" : " times");
}

bool RestartPolicy::MayRestart(const v1::JobReport& report, const std::string& lacking) const {
  return report.exit_code() != 0 && max_restarts_ > 0 && WhyNot(report, lacking).empty();
}

RestartPolicy::Decision RestartPolicy::Decide(const v1::JobReport& report, std::chrono::nanoseconds lived,
                                              const std::string& lacking) {
  Decision decision;
  if (report.exit_code() == 0 || max_restarts_ == 0) return decision;
  decision.why_not = WhyNot(report, lacking);
  if (!decision.why_not.empty()) return decision;
  ++restarts_;
  short_lives_ = lived < kShortLife ? short_lives_ + 1 : 0;
  decision.restart = true;
  if (short_lives_ > 1) {
    const uint32_t doublings = std::min<uint32_t>(short_lives_ - 2, 10);
    decision.delay = std::min<std::chrono::milliseconds>(std::chrono::seconds(1ll << doublings), kLongestDelay);
  }
  return decision;
}

}  // namespace cohort::launcher
