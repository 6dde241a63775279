// The signals that a rank is sent: the order to end, which is SIGTERM to its processes and SIGKILL when its time is
// over, and notices.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "cohort/launcher/agent/life/rank_ending.h"
#include "cohort/launcher/agent/life/rank_family.h"
#include "cohort/launcher/agent/life/rank_handle.h"
#include "cohort/launcher/agent/life/rank_life.h"
#include "cohort/launcher/agent/stacks/rank_stacks.h"
#include "cohort/launcher/agent/watch/rank_members.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/checked_state.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RankSignals {
 public:
  using TimePoint = EventLoop::Clock::time_point;
  using Life = runtime::CheckedState<RankLife>;

  // For the rank of that handle and life. `search` finds its processes. All outlive it.
  RankSignals(EventLoop* loop, const RankHandle* handle, const Life* life, RankMemberSearch* search, size_t local_rank)
      : loop_(loop), handle_(handle), life_(life), search_(search), local_rank_(local_rank) {}
  ~RankSignals() { loop_->Cancel(kill_timer_); }
  RankSignals(const RankSignals&) = delete;
  RankSignals& operator=(const RankSignals&) = delete;

  // None was given, or is decided.
  bool none() const { return ending_ == RankEnding::kNone; }
  // It was sent the first signal.
  bool told() const { return ending_ == RankEnding::kAsked || ending_ == RankEnding::kKilled; }
  // That was SIGTERM.
  bool asked() const { return ending_ == RankEnding::kAsked; }
  // When its time is over.
  const std::optional<TimePoint>& kill_at() const { return kill_at_; }

  // While it is held back it gets no SIGTERM.
  void HoldBack(bool held_back) { held_back_ = held_back; }
  void EndHoldBack();
  // SIGTERM, and SIGKILL after `grace` if that is earlier than known; without a grace SIGKILL now. One that is `spared`
  // gets no SIGTERM, but a look at where it is. One that has ended by itself is not told to: its end stays its own.
  void Give(std::chrono::milliseconds grace, TimePoint now, bool spared);
  // SIGKILL to its group, while its first process is not reaped.
  void Kill();
  // The same for a cause that it gave, which its end then says, unless it was told to end or gave one before.
  void KillFor(const std::string& own_fault);
  // The same for one that has asked to end with that code (MPI_Abort): its end is told as that, 0 as 1.
  void EndAs(int exit_code);
  // SIGTERM to those of its processes that need it and have not had it. `again`: once the rank was told, and only where
  // it is time: some may have lost their parent. A pass over /proc.
  void TellFamily(TimePoint now, bool again);
  // Its first process has ended: no SIGKILL is due. Others may have the rest of the time.
  void OnReaped() { loop_->Cancel(kill_timer_); }
  // It waits for the next epoch: nothing is due.
  void OnStays();
  // A notice: SIGUSR1 or SIGUSR2 to its program, or where that is not known to those of its processes that handle it.
  void PassOn(int signal);
  // Says in an end, whose signal or status is known, what it was sent.
  void Describe(v1::RankExit* exit) const;

 private:
  void Ask(bool spared);
  void AskNow();

  EventLoop* const loop_;
  const RankHandle* const handle_;
  const Life* const life_;
  RankMemberSearch* const search_;
  const size_t local_rank_;
  runtime::CheckedState<RankEnding> ending_{RankEnding::kNone};
  bool held_back_ = false;  // until evidence has been looked for
  std::string own_fault_;
  EventLoop::TimerId kill_timer_ = 0;
  std::optional<TimePoint> kill_at_;
  TimePoint asked_at_{};
  std::optional<TimePoint> next_telling_;
  RankFamily family_;
  int passed_on_ = 0;               // the latest notice
  bool was_stopped_ = false;        // when it was killed
  std::optional<int> ends_as_;      // the code that it asked for
  std::optional<RankPlace> place_;  // before it was told to end
};

}  // namespace cohort::launcher
