#include "launcher/control/restart.h"

#include <algorithm>

namespace cohort::launcher {

RestartPolicy::Decision RestartPolicy::Decide(const v1::JobReport& report, std::chrono::nanoseconds lived,
                                              const std::string& lacking) {
  Decision decision;
  if (report.exit_code() == 0 || max_restarts_ == 0) return decision;
  decision.why_not = lacking;
  if (!lacking.empty()) return decision;
  for (const v1::RankExit& exit : report.exits()) {
    if (!exit.started()) {
      decision.why_not = "what could not be executed would fail again";
      return decision;
    }
  }
  if (restarts_ == max_restarts_) {
    decision.why_not = "it has been restarted " + std::to_string(restarts_) + (restarts_ == 1 ? " time" : " times");
    return decision;
  }
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
