// The ranks of this node in one epoch of the job: the socket and the segment that serve them, their processes, and what
// the rendezvous is told about them. A restart gets a new one.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/activity/rank_states.h"
#include "cohort/launcher/agent/launcher_news.h"
#include "cohort/launcher/agent/link/rendezvous_link.h"
#include "cohort/launcher/agent/mpi/mpi_service.h"
#include "cohort/launcher/agent/rank/log_writer.h"
#include "cohort/launcher/agent/rank/rank_input_file.h"
#include "cohort/launcher/agent/rank/rank_service.h"
#include "cohort/launcher/agent/spawned_worlds.h"
#include "cohort/launcher/agent/supervisor.h"
#include "cohort/launcher/agent/trace/node_trace.h"
#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/sentinel.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class NodeRanks {
 public:
  // The agent that they belong to. All of it outlives them.
  struct Owner {
    std::string address;           // of its socket; COHORT_AGENT
    Cgroup* cgroup = nullptr;      // for the ranks
    Sentinel* sentinel = nullptr;  // sweeps when the agent can't
    LogWriter* logs = nullptr;     // for what they print
    RendezvousLink* link = nullptr;
    LauncherNews* news = nullptr;               // what they print and want
    const RankInputFile* rank_input = nullptr;  // none: rank 0 has no input, or gets it by messages
  };

  // `on_all_gone`: every rank has ended and was reported, or stays, and nothing that the others started lives; what
  // they have printed is in its files, if the disk takes it.
  NodeRanks(EventLoop* loop, Owner owner, v1::Assignment assignment, std::function<void()> on_all_gone);
  ~NodeRanks() {
    loop_->Cancel(log_timer_);
    loop_->Cancel(wait_timer_);
  }
  NodeRanks(const NodeRanks&) = delete;
  NodeRanks& operator=(const NodeRanks&) = delete;

  // Makes the segment, listens, starts the ranks and tells the rendezvous. Call from the main thread. Not OK when the
  // node can't serve ranks at all; those that can't be executed are reported as failed. `kept`: processes that live on
  // from the epoch before, by local rank; they join again by themselves.
  absl::Status Start(std::vector<std::optional<Supervisor::Kept>> kept = {});
  // The ranks as processes.
  Supervisor& processes() { return processes_; }
  // The reader of their calls, for dlaunch.
  NodeTrace& trace() { return trace_; }
  // A child process has ended. False when it is neither a rank nor one that a rank has spawned.
  bool OnChildEnded(pid_t pid, int wait_status) {
    return processes_.OnChildEnded(pid, wait_status) || spawned_.OnChildEnded(pid, wait_status);
  }
  // See Supervisor.
  void Stop(std::chrono::milliseconds grace, bool restarting);
  // dlaunch takes what they print again.
  void Resume();

  // Takes messages of the rendezvous about the running job; other messages are ignored.
  void OnMessage(const v1::ToAgent& message);
  // Something has failed: what ranks print from now on is probably a consequence.
  void MarkFailure();
  // Whether a rank asks for notices of a preemption: a scheduler's signal is then no order to its process.
  bool asks_for_notices() const { return service_.asks_for_notices(); }
  // They are about to be told to end by SIGTERM to the agent. Where the ranks of other nodes go on, their ends will say
  // why; else the rendezvous is told, so that it knows the cause of what follows.
  void SayWhyTheyEnd(const std::string& why);

  // The calls that the ranks are in and the resources that they use, for watchers. A pass over /proc.
  v1::NodeView View();

  // Whether a search through all processes, after the last rank's end, has found nothing of theirs.
  bool swept() const { return swept_; }
  bool replaceable() const { return assignment_.job().nodes_replaceable(); }
  std::chrono::milliseconds grace() const { return std::chrono::milliseconds(assignment_.job().grace_ms()); }

 private:
  enum class Life {
    kRunning,
    kRanksGone,  // spawned processes may live
    kOver,       // nothing lives. Other nodes may yet be told which rank has left MPI
  };
  struct SpawnedFailure {
    std::string why;
    int exit_code = 1;  // that it gives the job
  };

  static constexpr std::chrono::seconds kSweepLimit{2};
  static constexpr std::chrono::milliseconds kLookAtLogs{10};
  // Since the last rank's end, the sweep and slow logs together: a node that is stopped and not done five seconds after
  // the grace counts as lost (Rendezvous).
  static constexpr std::chrono::seconds kDoneWithin{3};

  std::vector<RankSurroundings> Surroundings() const;
  void On(const Supervisor::Line& event);
  void On(const Supervisor::Notice& event) { owner_.news->Notice(event.text); }
  void On(const Supervisor::Started& event);
  void On(const Supervisor::InputWanted& event) { owner_.news->WantInput(event.bytes, event.closed); }
  void On(const Supervisor::Ended& event);
  void On(const Supervisor::AllGone& event);
  v1::CallState LatestCallOf(int local_rank);
  bool IsAlive(int local_rank) const;
  void On(const RankService::Hello& event);
  void On(const RankService::Recorded& event);
  void On(const RankService::Goodbye& event) {
    said_goodbye_[event.local_rank] = true;
    trace_.OnLeave(event.local_rank);
  }
  void On(const RankService::EpochLeft& event);
  void On(const RankService::KillWanted& event) { processes_.KillAsAsked(event.local_rank, event.why); }
  void On(const RankService::Vanished& event) { processes_.OnProgramVanished(event.local_rank, event.pid); }
  void OnStuckInMpi(int local_rank, const std::string& why);
  void OnSpawnedFailure(int local_rank, const std::string& why, std::optional<int> exit_code, int signal);
  void SendSpawnedFailure(int local_rank);
  // The spawned processes that outlive the ranks are waited for, as MPI's own mpirun does.
  void FinishIfAllGone();
  void LookAtWaits();
  void AwaitLogs(runtime::Deadline deadline);

  EventLoop* const loop_;
  const Owner owner_;
  const v1::Assignment assignment_;
  const std::function<void()> on_all_gone_;
  Supervisor processes_;
  RankService service_;
  RankStates states_;  // while there is a trace
  NodeTrace trace_;
  std::unique_ptr<MpiService> mpi_;  // none: no rank is served as an MPI program
  SpawnedWorlds spawned_;
  Life life_ = Life::kRunning;
  bool stopped_ = false;
  std::map<int, SpawnedFailure> spawned_failures_;  // by local rank, the first of each
  std::string torch_switch_;                        // for PYTHONPATH
  std::string nccl_plugin_;                         // for NCCL_PROFILER_PLUGIN
  std::vector<WatchedProcess> joined_;              // by local rank, as the next: the latest that has joined
  std::vector<bool> said_goodbye_;
  bool after_failure_ = false;
  bool stuck_is_told_ = false;  // a rank that waits in MPI, to the user
  bool swept_ = false;
  EventLoop::TimerId log_timer_ = 0;
  EventLoop::TimerId wait_timer_ = 0;
  std::string reason_to_end_;
};

}  // namespace cohort::launcher
