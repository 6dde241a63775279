#include "cohort/launcher/agent/life/rank_family.h"

#include <csignal>

#include "cohort/launcher/agent/watch/signal_targets.h"

namespace cohort::launcher {

bool RankFamily::IsTold(const RankMember& member) const {
  const auto told = told_.find(member.pid);
  return told != told_.end() && told->second == member.start_time;
}

void RankFamily::TellToEnd(const RankMembers& members, pid_t program, bool late, Clock::time_point now) {
  const auto tell = [this](const RankMember& member) {
    if (IsTold(member)) return;
    told_[member.pid] = member.start_time;
    SignalMember(member, SIGTERM);
  };
  const auto told = [this](const RankMember& member) { return IsTold(member); };
  for (const RankMember* member : WhoIsToEnd(members, told, late)) {
    const bool reads_on = IsFilter(*member) && now - reads_on_.try_emplace(member->pid, now).first->second < kReadsOn;
    if (!reads_on) tell(*member);
  }
  for (const RankMember& member : members) {
    if (late && member.pid == program) tell(member);
  }
}

}  // namespace cohort::launcher
