// The ranks of a node as processes: started, watched, ended, their ends reported once each.
//
// A death is known by SIGCHLD at once, and earlier still for large processes, whose memory the kernel tears down first:
// their exiting flag in /proc is looked at every 20 ms. The kernel tells when a rank is stopped (SIGSTOP), and from
// then on it is looked at every 20 ms too. The user is told when it stays so; later it is killed and reported, unless
// the job waits for stopped ranks. One that a debugger has stopped is left alone; the user is told of that as well.
//
// A rank may stay: it leaves the epoch and waits for the next one, whose supervisor takes its process over.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/launcher/agent/left_behind.h"
#include "cohort/launcher/agent/life/supervised_rank.h"
#include "cohort/launcher/agent/rank/log_writer.h"
#include "cohort/launcher/agent/rank/rank_process.h"
#include "cohort/launcher/agent/rank_evidence.h"
#include "cohort/launcher/agent/rank_start.h"
#include "cohort/launcher/agent/rank_streams.h"
#include "cohort/launcher/agent/stacks/rank_stacks.h"
#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/memory_watch.h"
#include "cohort/launcher/agent/watch/rank_members.h"
#include "cohort/launcher/agent/watch/sentinel.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// A rank's own part of what its process is given, by local rank.
struct RankSurroundings {
  std::vector<std::string> environment;
  int inherited = -1;  // see RankCommand
};

class Supervisor {
 public:
  // A rank has printed it.
  struct Line {
    const v1::OutputLine* line;  // until the handler returns
  };
  // A line for the user.
  struct Notice {
    std::string text;
  };
  // Once, for Start: who runs, and who could not be executed. Before any Ended.
  struct Started {
    v1::RanksStarted started;
  };
  // The job's first rank, where it gets dlaunch's standard input, has room for more (RankInput::Want).
  struct InputWanted {
    uint64_t bytes;
    bool closed;
  };
  // A rank has ended, or can't do anything any more. Everything but `doing` and `finalized` is filled in.
  struct Ended {
    int local_rank;
    v1::RankExit exit;
  };
  // Every rank has ended and was reported, or stays. Those that ended can print no more, or had their time to
  // (LeftBehind).
  struct AllGone {};
  using Event = std::variant<Line, Notice, Started, InputWanted, Ended, AllGone>;
  using Handler = std::function<void(const Event&)>;
  using Kept = RankHandle;

  // Ranks are started in `cgroup`, where it was made. `logs` writes their files, if the job wants such. Executing all
  // of them may take `exec_limit`.
  Supervisor(EventLoop* loop, Sentinel* sentinel, const Cgroup* cgroup, LogWriter* logs, Handler handle,
             std::chrono::milliseconds exec_limit = kExecTimeout);
  ~Supervisor();

  // Starts all ranks of the assignment but those that were `kept`, by local rank. Does not wait for their programs: a
  // file system that holds one may not answer. Call from the main thread. `input_of_first_rank`: the descriptor that
  // rank 0 gets as its standard input, not owned; -1: as the job says.
  void Start(const v1::Assignment& assignment, const std::vector<RankSurroundings>& surroundings,
             std::vector<std::optional<Kept>> kept = {}, int input_of_first_rank = -1);

  // Ends every rank: SIGTERM to its processes, SIGKILL to all of them after `grace`. A later call can only shorten
  // that. With a grace it first looks where each rank is, which its end then says, and on the node of rank 0 asks
  // services of libraries what they know, which a notice then says. SIGTERM waits for that, kEvidenceWithin at most.
  // With `restarting` those that may stay get no SIGTERM, and have the grace to leave the epoch.
  void Stop(std::chrono::milliseconds grace, bool restarting = false);
  // Sends SIGUSR1 or SIGUSR2 to every rank's program that has not been told to end: a notice from outside.
  void PassOn(int signal);
  // The process that takes part as this rank, when it is not the one that was started but a descendant of that.
  void OnProgramJoined(int local_rank, pid_t program, bool may_stay) {
    ranks_[local_rank].OnProgramJoined(program, may_stay);
  }
  // A rank has left the epoch and waits for the next.
  void OnStays(int local_rank);
  // The processes of those that stay and live, by local rank: this object has nothing to do with them any more. Those
  // that were told to end, and have not, are killed. After AllGone.
  std::vector<std::optional<Kept>> TakeStaying();
  // A rank's program has closed its connection while the wrapper around it lives on: when the program has ended, the
  // wrapper gets a second to end too, then it is ended.
  void OnProgramVanished(int local_rank, pid_t program) { ranks_[local_rank].OnProgramVanished(program); }

  // The rank has asked for it: SIGKILL to its group, reported with its reason, or as if it had ended with `exit_code`.
  void KillAsAsked(int local_rank, const std::string& why, std::optional<int> exit_code = std::nullopt) {
    RankSignals& signals = ranks_[local_rank].signals();
    exit_code ? signals.EndAs(*exit_code) : signals.KillFor(why);
  }

  // A child process has ended. False when it is none of the ranks.
  bool OnChildEnded(pid_t pid, int wait_status);

  // A child process has been stopped or continued by a signal; the kernel tells the last of several at once.
  void OnChildStopped(pid_t pid);

  // Their output and input.
  RankStreams& streams() { return streams_; }

  // 0 when it is not running, or not started yet.
  pid_t GroupOf(int local_rank) const {
    const bool started = static_cast<size_t>(local_rank) < ranks_.size();
    return started && ranks_[local_rank].has_process() ? ranks_[local_rank].handle().pid() : 0;
  }
  // The debugger that has stopped the rank ("gdb, pid 4711"), or empty. Reads /proc.
  std::string HeldBy(int local_rank) const {
    return ranks_[local_rank].has_process() ? ranks_[local_rank].handle().HeldBy() : "";
  }
  // The resources that each rank's processes use now; `doing` is left to the caller. A pass over /proc.
  std::vector<v1::RankView> View() const;
  // Finds where the threads of these ranks are, of all where none is named, and as Stop what services know: each rank's
  // text within kEvidenceWithin, unless this object goes before.
  void GatherStacks(const v1::StacksWanted& wanted, const std::function<void(v1::RankStack)>& on_stack);
  bool all_gone() const;
  std::vector<pid_t> pids() const;
  // The processes of the ranks that stay.
  std::vector<pid_t> staying() const;

 private:
  static constexpr std::chrono::milliseconds kEvidenceWithin{1500};
  static constexpr std::chrono::milliseconds kLookInterval{20};
  static constexpr int kLooksPerSmallLook = 10;  // small processes' ends are seen at once anyway
  static constexpr int kLooksPerMemoryLook = 50;
  static constexpr long kLargeBytes = 64l << 20;
  // Leaves 1 s of the promised 3.5 s to a machine that has other things to do than to run this process.
  static constexpr std::chrono::milliseconds kFrozenAfter{2500};
  static constexpr std::chrono::milliseconds kSelfStall{500};  // my own timer was late: I know nothing of others

  void OnStartKnown(v1::RanksStarted started);
  void Look();
  void LookAt(size_t index, EventLoop::Clock::time_point now);
  void TellOfStop(const SupervisedRank& rank);
  void TellUser(const std::string& text) { handle_(Notice{text}); }
  void Report(size_t index, int wait_status);
  void CheckAllGone();

  EventLoop* const loop_;
  Sentinel* const sentinel_;
  const Cgroup* const cgroup_;
  LogWriter* const logs_;
  const Handler handle_;
  bool waits_for_stopped_ = false;  // --stopped wait
  bool ended_badly_ = false;        // one of the ranks
  bool told_all_gone_ = false;
  EventLoop::TimerId look_timer_ = 0;
  EventLoop::Clock::time_point last_look_{};
  int looks_ = 0;
  MemoryWatch memory_;
  RankMemberSearch search_;
  SupervisedRanks ranks_;
  std::set<size_t> large_;  // ranks whose memory takes the kernel long to tear down
  RankStreams streams_{&ranks_};
  RankStart start_;
  LeftBehind left_behind_;
  RankStacks stacks_{loop_};
  RankEvidence evidence_{loop_};
};

}  // namespace cohort::launcher
