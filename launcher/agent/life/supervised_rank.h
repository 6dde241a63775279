// One rank of a node: its processes, its life, the order to end, and whether it is stopped. Its supervisor looks at it
// and decides.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cohort/launcher/agent/life/rank_handle.h"
#include "cohort/launcher/agent/life/rank_life.h"
#include "cohort/launcher/agent/life/rank_signals.h"
#include "cohort/launcher/agent/life/stop_watch.h"
#include "cohort/launcher/agent/rank/rank_input.h"
#include "cohort/launcher/agent/rank/rank_output.h"
#include "cohort/launcher/agent/rank/rank_process.h"
#include "cohort/launcher/agent/watch/rank_members.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/checked_state.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class SupervisedRank {
 public:
  // `search` finds the processes of its node's ranks. Both outlive it.
  SupervisedRank(EventLoop* loop, RankMemberSearch* search, uint32_t rank, RankCommand command);
  ~SupervisedRank();
  SupervisedRank(const SupervisedRank&) = delete;
  SupervisedRank& operator=(const SupervisedRank&) = delete;

  uint32_t rank() const { return rank_; }
  // "rank 3"
  std::string name() const { return "rank " + std::to_string(rank_); }
  const RankCommand& command() const { return command_; }
  RankHandle& handle() { return handle_; }
  const RankHandle& handle() const { return handle_; }
  RankSignals& signals() { return signals_; }
  const RankSignals& signals() const { return signals_; }
  StopWatch& stop() { return stop_; }
  const StopWatch& stop() const { return stop_; }

  // A process that is not reaped.
  bool has_process() const { return HasProcess(life_); }
  // Its process runs, and its end is not known.
  bool watched() const { return has_process() && life_ != RankLife::kReported; }
  bool staying() const { return life_ == RankLife::kStaying; }
  // It is reaped, and its end not reported yet.
  bool reaped() const { return life_ == RankLife::kReaped; }
  bool reported() const { return life_ == RankLife::kReported || life_ == RankLife::kGone; }
  // The wait status of its first process, from MarkEnded on.
  const std::optional<int>& wait_status() const { return wait_status_; }

  absl::Status Fork();
  // Takes over the processes of a rank that has stayed.
  void TakeOver(RankHandle handle);
  // Its program runs: output and input begin, or go on.
  void Begin(RankOutput::Options options, bool paused, const RankInput::Want& want);
  // Its end is told, or why it has never run. Nothing more is.
  void MarkReported() { life_.Enter(has_process() ? RankLife::kReported : RankLife::kGone); }
  void MarkReaped();
  void MarkEnded(int wait_status) { wait_status_ = wait_status; }
  // It leaves the epoch and waits for the next one. False: it is to end.
  bool Stay();
  // Hands its processes over to the next epoch. Nothing: it is to end, and was killed.
  std::optional<RankHandle> Keep();

  // The process that takes part, when it is not the one that was started but a descendant of that.
  void OnProgramJoined(pid_t program, bool may_stay);
  // See Supervisor.
  void OnProgramVanished(pid_t program);
  // See Supervisor.
  void Stop(std::chrono::milliseconds grace, EventLoop::Clock::time_point now, bool restarting);
  // Its end, without its calls. `wait_status` is as wait() gives it.
  v1::RankExit MakeExit(int wait_status) const;

 private:
  EventLoop* const loop_;
  const uint32_t rank_;
  RankCommand command_;
  RankHandle handle_;
  RankSignals::Life life_{RankLife::kNone};
  RankSignals signals_;
  StopWatch stop_;
  std::optional<int> wait_status_;
  bool may_stay_ = false;  // as it said in its hello
  EventLoop::TimerId vanished_timer_ = 0;
};

// By local rank.
using SupervisedRanks = std::deque<SupervisedRank>;

}  // namespace cohort::launcher
