#include "cohort/launcher/agent/left_behind.h"

#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>

#include "cohort/launcher/agent/watch/signal_targets.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMaxNames = 4;

// "python3.11 (pid 12), sleep (pid 13) and 2 more".
std::string NamesOf(const RankMembers& members) {
  std::string names;
  for (size_t i = 0; i < std::min(members.size(), kMaxNames); ++i) {
    names += (i == 0 ? "" : ", ") + members[i].program + " (pid " + std::to_string(members[i].pid) + ")";
  }
  if (members.size() > kMaxNames) names += " and " + std::to_string(members.size() - kMaxNames) + " more";
  return names;
}

bool IsOrder(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return false;
  const int signal = WTERMSIG(wait_status);
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
}

bool IsAnyFilter(const RankMembers& members) { return std::any_of(members.begin(), members.end(), IsFilter); }

void Kill(const RankMembers& members, bool filters_too) {
  for (const RankMember& member : members) {
    if (filters_too || !IsFilter(member)) SignalMember(member, SIGKILL);
  }
}

// Nobody can print for it any more.
bool OutputIsOver(const SupervisedRank& rank) {
  return rank.handle().output() == nullptr || rank.handle().output()->over();
}

// The process is reaped. A process that left its group and closed its output is not seen.
bool NothingIsLeft(const SupervisedRank& rank) {
  return OutputIsOver(rank) && ::kill(-rank.handle().pid(), 0) != 0 && errno == ESRCH;
}

}  // namespace

void LeftBehind::Report(size_t index) {
  if (!(*ranks_)[index].reported()) callbacks_.on_end(index);
}

bool LeftBehind::HasFilters(size_t index) { return IsAnyFilter(search_->Of(index, kFresh)); }

void LeftBehind::Begin(size_t index, Clock::time_point now) {
  SupervisedRank& rank = (*ranks_)[index];
  if (rank.handle().output() != nullptr) rank.handle().output()->Drain(false);
  const bool failed = *rank.wait_status() != 0 && !rank.signals().asked();
  const bool others_may_live = !failed && !rank.signals().told();
  if (others_may_live || NothingIsLeft(rank)) return Report(index);
  const RankMembers& members = search_->Of(index, kFresh);
  if (members.empty()) return Report(index);
  if (rank.signals().asked()) {
    left_[index] = {
        .why = Left::Why::kTold, .reading_begin = now, .filters_end = rank.signals().kill_at().value_or(now + grace_)};
  } else if (IsOrder(*rank.wait_status()) && !rank.signals().told()) {
    left_[index] = {.why = Left::Why::kTold, .reading_begin = now, .filters_end = now + grace_};
    rank.signals().TellFamily(now, false);
    if (!IsAnyFilter(members)) Report(index);
  } else if (!rank.signals().told() && !OutputIsOver(rank)) {
    left_[index] = {.why = Left::Why::kFailed, .reading_begin = now, .filters_end = now + kTime};
  } else {
    Kill(members, true);
    Report(index);
  }
}

bool LeftBehind::AwaitOutputs(Clock::time_point now) {
  for (size_t i = 0; i < ranks_->size(); ++i) {
    const SupervisedRank& rank = (*ranks_)[i];
    if (rank.staying() || left_.contains(i) || rank.signals().told()) continue;
    if (rank.wait_status() && *rank.wait_status() == 0 && !OutputIsOver(rank)) {
      left_[i] = {.why = Left::Why::kEnded, .reading_begin = now, .filters_end = now + kTime};
    }
  }
  return waits();
}

bool LeftBehind::Look(Clock::time_point now, Clock::duration stalled, Clock::duration unread) {
  bool over = false;
  for (size_t i = 0; i < ranks_->size(); ++i) {
    (*ranks_)[i].signals().TellFamily(now, true);
    const auto found = left_.find(i);
    if (found == left_.end()) continue;
    if (Left& left = found->second; left.why != Left::Why::kTold) {
      left.reading_begin += stalled + unread;
      left.filters_end += stalled + unread;
      left.begin += stalled;
      left.others_end += stalled;
    }
    over |= LookAt(i, now);
  }
  TellTheRest();
  return over;
}

bool LeftBehind::IsOver(const Left& left, const SupervisedRank& rank, const RankMembers& members) {
  switch (left.why) {
    case Left::Why::kTold:
      return members.empty();
    case Left::Why::kFailed:
      return OutputIsOver(rank) || members.empty();
    case Left::Why::kEnded:
      return OutputIsOver(rank);
  }
  return true;
}

bool LeftBehind::LookAt(size_t index, Clock::time_point now) {
  const SupervisedRank& rank = (*ranks_)[index];
  const Left& left = left_.at(index);
  const auto age = std::chrono::duration_cast<std::chrono::milliseconds>((now - left.begin) / 10);
  const RankMembers& members = search_->Of(index, std::clamp(age, kFresh, std::chrono::milliseconds(200)));
  if (IsOver(left, rank, members)) {
    if (left.why == Left::Why::kFailed) Kill(members, true);
    End(index);
    return true;
  }
  if (now >= left.filters_end || (now >= left.others_end && !EndOthers(index, members))) {
    EndNow(index, search_->Of(index));
    return true;
  }
  if (left.why == Left::Why::kFailed && now - left.begin >= kBecomesFilter) {
    Kill(members, false);  // they would hold on to its devices
  }
  if (!rank.signals().asked() && HasSpoken(left, members, now)) Report(index);
  return false;
}

bool LeftBehind::HasSpoken(const Left& left, const RankMembers& members, Clock::time_point now) {
  const auto time = now - left.reading_begin;
  return time >= kLastWords || now - left.begin >= kUnreadWords || (time >= kBecomesFilter && !IsAnyFilter(members));
}

bool LeftBehind::EndOthers(size_t index, const RankMembers& members) {
  if (!IsAnyFilter(members)) return false;
  Left& left = left_.at(index);
  left.others_end += kTime;  // of what filters have started meanwhile
  RankMembers others;
  std::copy_if(members.begin(), members.end(), std::back_inserter(others),
               [](const RankMember& member) { return !IsFilter(member); });
  if (others.empty()) return true;
  if (left.why == Left::Why::kEnded) NoticeEnded(index, others);
  Kill(others, false);
  return true;
}

void LeftBehind::NoticeEnded(size_t index, const RankMembers& members) {
  Notice((*ranks_)[index].name() + " has ended and left " + NamesOf(members) + " behind, which kept its output open; " +
         (members.size() == 1 ? "it was" : "they were") + " ended 2 s later");
}

void LeftBehind::EndNow(size_t index, const RankMembers& members) {
  const std::string name = (*ranks_)[index].name();
  if (left_.at(index).why == Left::Why::kTold) {
    const char* const were = members.size() == 1 ? " was" : " were";
    if (!members.empty()) Notice(name + ": " + NamesOf(members) + " did not end when asked and" + were + " killed");
  } else if (members.empty()) {
    Notice(name + " has ended, but something outside of the job keeps its output open; it is read no more");
  } else {
    NoticeEnded(index, members);
  }
  Kill(members, true);
  End(index);
}

void LeftBehind::End(size_t index) {
  left_.erase(index);
  Report(index);
}

void LeftBehind::Notice(const std::string& text) {
  if (notices_++ < kNoticesInWhole) return callbacks_.on_notice(text);
  ++untold_;
}

void LeftBehind::TellTheRest() {
  if (untold_ == 0) return;
  callbacks_.on_notice((untold_ == 1 ? "1 more rank" : std::to_string(untold_) + " more ranks") +
                       " of this node left processes behind as well");
  untold_ = 0;
}

void LeftBehind::Shorten(Clock::time_point until, Clock::time_point now) {
  for (size_t i = 0; i < ranks_->size(); ++i) {
    const auto found = left_.find(i);
    if (found == left_.end()) continue;
    found->second.filters_end = std::min(found->second.filters_end, until);
    if (until > now) continue;
    Kill(search_->Of(i, kFresh), true);
    End(i);
  }
}

}  // namespace cohort::launcher
