// The processes that a rank leaves behind when its first one has ended: how long they may live, when the rank's end is
// reported, and how they are ended.
//
//   the rank's first process          what is left of the rank lives                      the end is reported
//   ended as told (SIGTERM)           until all of it has ended; to the end of --grace    when all has ended
//   was sent SIGTERM, SIGINT or       the same: it is told to end as well                 as after a failure
//   SIGHUP by another
//   failed                            200 ms if it can still print; filters, which read   when that is over; after 1 s
//                                     what the rank printed, 2 s at most                  where filters go on
//   ended with 0                      until all ranks of the node have ended, then 2 s    at once
//                                     at most if it can still print
//
// Nothing is waited for where nothing is left: a rank whose pipes have closed with it is over. While nobody takes what
// ranks print, the time of filters stands still: they hold text that they cannot write. All others have their 2 s, and
// a failure is told after 5 s at the latest: what floods its pipe never comes to an end by itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "cohort/launcher/agent/life/supervised_rank.h"
#include "cohort/launcher/agent/watch/rank_members.h"

namespace cohort::launcher {

class LeftBehind {
 public:
  using Clock = EventLoop::Clock;
  struct Callbacks {
    std::function<void(size_t index)> on_end;  // the rank's end can be reported
    std::function<void(const std::string&)> on_notice;
  };

  LeftBehind(SupervisedRanks* ranks, RankMemberSearch* search, Callbacks callbacks)
      : ranks_(ranks), search_(search), callbacks_(std::move(callbacks)) {}

  void set_grace(std::chrono::milliseconds grace) { grace_ = grace; }
  // The first process has been reaped.
  void Begin(size_t index, Clock::time_point now);
  // All first processes have ended. Begins to wait for the outputs that are still open of ranks that ended with 0.
  // Returns whether anything is waited for.
  bool AwaitOutputs(Clock::time_point now);
  // Every 20 ms or so. Returns whether something that was waited for is over. Of the time since the last look `stalled`
  // does not count, since this process did not run; `unread` does not count for filters, since nobody took what ranks
  // printed.
  bool Look(Clock::time_point now, Clock::duration stalled, Clock::duration unread);
  // Nothing may live longer than that.
  void Shorten(Clock::time_point until, Clock::time_point now);
  // Whether something is waited for.
  bool waits() const { return !left_.empty(); }
  // Whether it has filters, which may still print its last words.
  bool HasFilters(size_t index);

 private:
  // The processes that a rank's first one has left behind.
  struct Left {
    enum class Why { kTold, kFailed, kEnded };
    Why why = Why::kEnded;
    Clock::time_point reading_begin{};           // moved by the time in which nobody reads what ranks print
    Clock::time_point filters_end{};             // moved as well: that time does not count for filters
    Clock::time_point begin = reading_begin;     // of the wait
    Clock::time_point others_end = filters_end;  // of all but filters
  };
  static constexpr std::chrono::seconds kTime{2};
  static constexpr std::chrono::seconds kLastWords{1};
  static constexpr std::chrono::seconds kUnreadWords{5};           // the same while nobody takes what ranks print
  static constexpr std::chrono::milliseconds kBecomesFilter{200};  // a shell's child may not have its input yet
  static constexpr std::chrono::milliseconds kFresh{5};            // one look serves ranks that end together
  static constexpr size_t kNoticesInWhole = 4;                     // of a node: all of its ranks may be alike

  bool LookAt(size_t index, Clock::time_point now);
  static bool IsOver(const Left& left, const SupervisedRank& rank, const RankMembers& members);
  static bool HasSpoken(const Left& left, const RankMembers& members, Clock::time_point now);
  // The time of all but filters is over. Returns whether a filter lives on.
  bool EndOthers(size_t index, const RankMembers& members);
  void EndNow(size_t index, const RankMembers& members);
  // Nothing is waited for any more.
  void End(size_t index);
  void NoticeEnded(size_t index, const RankMembers& members);
  // Says the first few in whole, and how many the others are.
  void Notice(const std::string& text);
  void TellTheRest();
  void Report(size_t index);

  SupervisedRanks* const ranks_;
  RankMemberSearch* const search_;
  Callbacks callbacks_;
  std::chrono::milliseconds grace_{0};
  std::map<size_t, Left> left_;  // by rank: until all of it is over
  size_t notices_ = 0;
  size_t untold_ = 0;  // notices of this look that are only counted
};

}  // namespace cohort::launcher
