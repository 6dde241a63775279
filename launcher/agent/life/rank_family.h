// Whom of a rank's processes has been told to end, and who is next: one that has appeared, or has lost its parent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>

#include "cohort/launcher/agent/watch/rank_members.h"

namespace cohort::launcher {

class RankFamily {
 public:
  using Clock = std::chrono::steady_clock;

  bool HasTold(pid_t pid) const { return told_.contains(pid); }
  // SIGTERM to those that need it and have not got it (signal_targets.h). `program`: the one that has joined the job,
  // which may count on the signal too; 0: none is known. `late`: half of the time is over.
  void TellToEnd(const RankMembers& members, pid_t program, bool late, Clock::time_point now);

 private:
  // One whose source has gone reads what is left, and ends by itself.
  static constexpr std::chrono::milliseconds kReadsOn{500};

  bool IsTold(const RankMember& member) const;

  std::map<pid_t, unsigned long long> told_;     // and when it had started
  std::map<pid_t, Clock::time_point> reads_on_;  // since when
};

}  // namespace cohort::launcher
