// Whether a job that has failed begins again: all of its ranks, in a new epoch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RestartPolicy {
 public:
  // `max_restarts` 0: never.
  explicit RestartPolicy(uint32_t max_restarts) : max_restarts_(max_restarts) {}

  struct Decision {
    bool restart = false;
    std::chrono::milliseconds delay{0};
    std::string why_not;  // for the user, where restarts were asked for; else empty
  };

  // An epoch that lasted for `lived` has ended with `report`; none of its ranks lives. A restart is counted.
  //
  // The first one begins at once. Where epochs end within a minute, one after another, the next waits 1 s, 2 s, 4 s,
  // ... 30 s at the most: what fails at once again should not hammer at files and servers. No restart follows a program
  // that could not be executed, since it never will be, nor the loss of a node where its ranks have no place: `lacking`
  // says so, or is empty.
  Decision Decide(const v1::JobReport& report, std::chrono::nanoseconds lived, const std::string& lacking = "");

  // Whether Decide would restart after that, which has not ended yet.
  bool MayRestart(const v1::JobReport& report, const std::string& lacking) const;

  uint32_t restarts() const { return restarts_; }

 private:
  // For the user; empty: there is nothing against it.
  std::string WhyNot(const v1::JobReport& report, const std::string& lacking) const;

  static constexpr std::chrono::seconds kShortLife{60};
  static constexpr std::chrono::seconds kLongestDelay{30};

  const uint32_t max_restarts_;
  uint32_t restarts_ = 0;
  uint32_t short_lives_ = 0;  // in a row
};

}  // namespace cohort::launcher
