// One rank of a node as a process: its life, what it was sent, and whether it is stopped. Its supervisor looks at it
// and decides.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cohort/launcher/agent/rank/error_file.h"
#include "cohort/launcher/agent/rank/rank_input.h"
#include "cohort/launcher/agent/rank/rank_output.h"
#include "cohort/launcher/agent/rank/rank_process.h"
#include "cohort/launcher/agent/rank_family.h"
#include "cohort/launcher/agent/rank_life.h"
#include "cohort/launcher/agent/stacks/rank_stacks.h"
#include "cohort/launcher/agent/stop_watch.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/agent/watch/rank_members.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/checked_state.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class SupervisedRank {
 public:
  // A process that lives on from one epoch into the next.
  struct Kept {
    RankProcess process;
    pid_t program = 0;
    ErrorFile error_file;
    std::unique_ptr<RankOutput> output;
    std::unique_ptr<RankInput> input;
  };

  // The processes that the first one has left behind (left_behind.h).
  struct Left {
    enum class Why { kTold, kFailed, kEnded };
    Why why = Why::kEnded;
    EventLoop::Clock::time_point since{};         // without the time in which nobody read what ranks printed
    EventLoop::Clock::time_point until{};         // of filters, since that time does not count for them
    EventLoop::Clock::time_point began = since;   // with that time
    EventLoop::Clock::time_point others = until;  // of all others
  };

  RankLife life() const { return life_; }
  // A process that is not reaped.
  bool running() const;
  bool reported() const { return life_ == RankLife::kReported || life_ == RankLife::kGone; }
  // Its process runs, and its end is not known.
  bool watched() const { return running() && life_ != RankLife::kReported; }
  bool staying() const { return life_ == RankLife::kStaying; }
  // Whether its program runs is not known yet.
  bool starting() const { return process.exec_error.valid(); }
  bool told_to_end() const { return ending_ != Ending::kNone; }
  bool asked_to_end() const { return ending_ == Ending::kAsked; }
  // SIGTERM is decided, and may be on its way.
  bool to_be_asked() const { return to_be_asked_; }
  // The process that takes part: the program behind a wrapper, where there is one.
  pid_t program_pid() const { return program != 0 ? program : process.pid; }

  absl::Status Fork();
  // Takes over a process that was kept, but for its output and input.
  void TakeOver(Kept* kept);
  void EndStarting(EventLoop* loop);
  // After the program was executed: output and input, new ones or those that were kept.
  void WatchOutput(EventLoop* loop, RankOutput::Options options, std::unique_ptr<RankOutput> kept, bool paused);
  void FeedInput(EventLoop* loop, const RankInput::Want& want, std::unique_ptr<RankInput> kept);

  void MarkRunning() { life_.Enter(RankLife::kRunning); }
  void MarkStaying() { life_.Enter(RankLife::kStaying); }
  // Its end is told, or why it has never run. Nothing more is.
  void MarkReported() { life_.Enter(running() ? RankLife::kReported : RankLife::kGone); }
  void MarkReaped() { life_.Enter(reported() ? RankLife::kGone : RankLife::kReaped); }
  // Hands the process over to the next epoch.
  Kept Keep();

  // SIGTERM to its processes (signal_targets.h), unless it is `spared` that, after a look at where it is. One that has
  // ended by itself is not told to: its end stays its own.
  void Ask(bool spared);
  // SIGKILL to its group, while its first process is not reaped.
  void Kill();
  // SIGUSR1 or SIGUSR2 to its program, or where that is not known to those of its processes that handle it.
  void PassOn(int signal);
  // SIGTERM to those of its processes that need it and have not had it. `again`: once the rank was told, and only where
  // it is time: some may have lost their parent. A pass over /proc.
  void TellFamily(EventLoop::Clock::time_point now, bool again);

  // Whether the rank's process, or the program behind it, is stopped. `state`: of its process.
  StopWatch::State LookForStop(const ProcessState& state) const;
  // "gdb, pid 4711": the debugger that has stopped it, or empty.
  std::string HeldBy() const;
  // Its end, without its calls. `wait_status` is as wait() gives it.
  v1::RankExit MakeExit(int wait_status) const;

  v1::RankPlacement placement;
  RankCommand command;
  RankProcess process;
  pid_t program = 0;  // behind a wrapper; 0: none or not known
  ErrorFile error_file;
  std::unique_ptr<RankOutput> output;
  std::unique_ptr<RankInput> input;    // of the one that gets dlaunch's
  RankMemberSearch* search = nullptr;  // of its node, not owned
  std::optional<int> ended;            // the wait status of its first process
  std::optional<Left> left;            // what is waited for after that
  bool large = false;
  bool may_stay = false;   // as it said in its hello
  bool held_back = false;  // from SIGTERM, until evidence has been looked for
  std::string own_fault;   // why it was ended, where it gave cause
  StopWatch stop;
  EventLoop::TimerId kill_timer = 0;                    // of Supervisor::Stop
  std::optional<EventLoop::Clock::time_point> kill_at;  // when that is
  EventLoop::TimerId vanished_timer = 0;                // of Supervisor::OnProgramVanished

 private:
  // The first signal that it was sent to end. kNone -> kAsked or kKilled.
  enum class Ending {
    kNone,
    kAsked,   // SIGTERM, after which it has time
    kKilled,  // SIGKILL
  };

  bool HasEndedByItself() const;
  void AskNow();

  runtime::CheckedState<RankLife> life_{RankLife::kNone};
  Ending ending_ = Ending::kNone;
  EventLoop::Clock::time_point asked_at_{};
  std::optional<EventLoop::Clock::time_point> next_telling_;
  RankFamily family_;
  int passed_on_ = 0;         // the latest notice
  bool was_stopped_ = false;  // when it was killed
  bool to_be_asked_ = false;
  std::optional<RankPlace> place_;  // before it was told to end
};

}  // namespace cohort::launcher
