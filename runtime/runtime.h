// Runtime joins a rank to its job before the rank communicates. There is one object per process and epoch. Everything
// else refers to it.
//
// An epoch is the time from one start of the job's ranks to their next start. The first has number 1. World size, ranks
// and nodes are fixed within it. A rank lost in an epoch stays lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

class ForkWatch;
class Runtime;

Checks ChecksOf(const Runtime& runtime);  // RuntimeOptions::checks, or what COHORT_CHECK says

struct RuntimeOptions {
  std::chrono::nanoseconds init_timeout = std::chrono::seconds(60);
  // Drive operations in a thread of their own while the program computes (overlap).
  bool progress_thread = false;
  // Ranks that wait for each other get an error (kFailedPrecondition) before CallOptions::timeout. Set it to false on a
  // rank where a thread that has made no call yet may sleep for longer than 30 s before its first call, for which other
  // ranks wait meanwhile: this rank is then never taken to be in a deadlock. COHORT_DETECT_DEADLOCKS overrides it.
  bool detect_deadlocks = true;
  // Looks for NaN in what collectives read, or for results that are not equal on all ranks. Must be equal on all ranks;
  // otherwise calls do not match. COHORT_CHECK overrides it.
  Checks checks = {};
  // How to join. When null, the environment decides: with COHORT_AGENT through the agent, otherwise as a world of one.
  // Init refuses a world of one with kFailedPrecondition if another launcher's variables say that there are several
  // (README.md).
  std::unique_ptr<Bootstrap> bootstrap = nullptr;
  // This process lives on when another rank fails and the job is restarted (NextEpoch). dlaunch does not tell it to
  // end.
  bool stays = false;
};

// Receives failures, for communicators and transports. The engine's owner calls it.
class MembershipListener : public BootstrapListener {
 public:
  // This rank ends in order. Nothing that is under way will report any more.
  virtual void OnFinalize() {}
};

class Runtime {
 public:
  // Joins the job. Blocks until this rank knows who it is. Fails with kDeadlineExceeded, kUnavailable or
  // kFailedPrecondition, and names the cause and the remedy.
  static absl::StatusOr<std::unique_ptr<Runtime>> Init(RuntimeOptions options = {});
  // Ends in order as Finalize does, if that was not called. Errors are then lost.
  ~Runtime();

  // Leaves a failed epoch, waits for the next one and joins it, in the same process. dlaunch must restart the job
  // (--max-restarts), and this process must have joined with RuntimeOptions::stays. Expensive state (data, caches,
  // compiled models) stays. Ranks that have died or do not come are started again, on another node if theirs is lost.
  //
  //   while (true) {
  //     const absl::Status trained = TrainFromCheckpoint(*runtime);  // makes its communicators, and destroys them
  //     if (!absl::IsUnavailable(trained)) return trained;
  //     absl::StatusOr<std::unique_ptr<Runtime>> next = Runtime::NextEpoch(std::move(runtime));
  //     if (!next.ok()) return next.status();
  //     runtime = *std::move(next);
  //   }
  //
  // Everything that refers to `ended` must be gone: communicators, windows, works. The new runtime has the options of
  // the first, a new epoch and an empty store. If nodes were lost without spares, ranks have other numbers: see
  // identity(). COHORT_EPOCH, RANK, MASTER_PORT and other variables keep the values of this process' start.
  //
  // A rank that stays must call this within dlaunch's --grace after the failure. Otherwise it is killed and started
  // again. If all living ranks call this without a failure, a new epoch begins too, and it counts as a restart.
  //
  // Blocks. `timeout` covers the end of the other ranks, the pause before the restart and their start. `ended` is gone
  // in any case. If the call is refused, this rank has left in order. In a forked child, which never belonged to
  // `ended`, nothing of it is touched. Errors:
  // - kDeadlineExceeded: `timeout` has passed.
  // - kFailedPrecondition: `ended` was made without RuntimeOptions::stays, was finalized or belongs to the parent of a
  //   forked child, or dlaunch does not restart this job.
  // - kUnimplemented: the job does not run under dlaunch.
  // - kInvalidArgument: `ended` is null.
  // - otherwise as Init.
  static absl::StatusOr<std::unique_ptr<Runtime>> NextEpoch(std::unique_ptr<Runtime> ended,
                                                            std::chrono::nanoseconds timeout = std::chrono::minutes(2));

  const Identity& identity() const;
  int rank() const { return identity().rank; }
  int world_size() const { return identity().world_size; }
  int node() const { return identity().node; }
  int local_rank() const { return identity().local_rank; }
  int local_world_size() const { return identity().local_world_size; }
  int node_count() const { return static_cast<int>(identity().nodes.size()); }
  const std::vector<Device>& devices() const { return identity().devices; }
  // The node of a world rank, and its local rank there. A `rank` outside this job ends the program.
  int node_of(int rank) const;
  int local_rank_of(int rank) const;

  Engine& engine();
  Segment& segment();
  // The job's key-value store, for addresses. Both calls block, with or without engine ownership. Keys have 1 to 1024
  // bytes and values at most 49152, otherwise kInvalidArgument. Get fails with kNotFound if nobody had put the key by
  // the deadline. It fails with kDeadlineExceeded if that could not be learned. In a forked child both fail with
  // kFailedPrecondition.
  absl::Status Put(std::string_view key, std::string_view value, Deadline deadline);
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline);
  // A call on the job's variables, which all ranks may change and count in. It blocks, and any thread may call it. Keys
  // have 1 to 1024 bytes; key, value and expected value together at most 49152. The variables are empty in each epoch.
  // They live in the rendezvous, at one round trip a call. Errors:
  // - kNotFound: a kGet whose variable nobody had set by the deadline.
  // - kInvalidArgument: sizes, a sum of what is no number, too many variables.
  // - kDeadlineExceeded: no answer came in time, so the call may have been done.
  // - kUnavailable: the agent has gone.
  // - kUnimplemented: the job does not run under dlaunch.
  // - kFailedPrecondition: after Finalize, or in a forked child.
  absl::StatusOr<VariableResult> CallVariable(const VariableCall& call, Deadline deadline);

  // Why `rank` cannot be reached any more, or OK. It is sticky within an epoch. kInvalidArgument: `rank` is not in this
  // job.
  absl::Status rank_status(int rank) const;
  // Adds or removes a listener; both take engine ownership. A new listener immediately receives the latest 64 group
  // failures of this epoch, because its own group may be among them. It asks rank_status for ranks lost earlier.
  void AddListener(MembershipListener* listener);
  void RemoveListener(MembershipListener* listener);
  void ReportStall(uint64_t group, uint64_t sequence, const RankSet& members, bool expired);
  void ReportWait(uint64_t group, const RankSet& members);
  void ReportGroupFailure(const GroupFailure& failure);
  // Asks this node's agent to kill this process for the reason `why`: something in it goes on that it cannot stop
  // itself. Returns at once. Returns false when there is no agent.
  bool AskToBeKilled(const std::string& why);
  // Returns whether the job must end soon (preempted, or out of time) and every rank stops before `step`. All ranks get
  // the same answer. On true the program saves its state and ends.
  //
  // Every rank asks before each of its steps, with the same numbers. The numbers fall only if the program goes back
  // after a failure (Communicator::Shrink). From any rank's first call on, schedulers' signals (SIGTERM, SIGUSR1,
  // SIGUSR2 at dlaunch or an agent) reach no program of the job as signals. This remains so after a restart.
  //
  //   for (uint64_t step = first; step < last; ++step) {
  //     const absl::StatusOr<bool> stop = runtime->OnPreemption(step);
  //     if (!stop.ok()) return stop.status();
  //     if (*stop) return SaveCheckpoint(step);  // and go on from it when the job is run again
  //     Train(step);
  //   }
  //
  // Without a notice a call costs a look at one word. After a notice it blocks once until every rank has reported the
  // steps it has begun. Ranks within a step report as soon as they look at their calls. All ranks stop before the first
  // step that nobody has begun (launcher/control/parts/step_agreement.h). The answer is false for good if a rank has
  // ended before it received the notice. After SIGTERM the ranks have dlaunch's --grace, counted from the signal. Then
  // they are killed. Without an agent (RuntimeOptions::bootstrap) there are no notices.
  //
  // One thread may call at a time. After kDeadlineExceeded or kUnavailable the program must not begin the step. It
  // ends, or asks again with this step or, after a loss, an earlier one. Errors:
  // - kInvalidArgument: `step` is below the one before, and nothing has failed.
  // - kDeadlineExceeded: a rank does not ask.
  // - kUnavailable: a rank was lost meanwhile.
  // - kFailedPrecondition: the runtime is finalized, this is a forked child, or `step` is beyond the agreed one.
  absl::StatusOr<bool> OnPreemption(uint64_t step, std::chrono::nanoseconds timeout = std::chrono::minutes(10));

  // Notes a group's failure that arrived after this rank's calls had returned success, and a call that reports it. The
  // first failure is kept for Finalize unless a call has reported it by then.
  void NoteUnreportedFailure(const absl::Status& status);
  void NoteReportedFailure(const absl::Status& status);

  // Ends in order: stops the progress thread and says goodbye, without waiting for other ranks. Returns a failure that
  // no call has reported yet. Pending operations and every later call of a communicator fail with kFailedPrecondition.
  // Afterwards only the accessors may be used. In a forked child it does nothing: the parent goes on.
  absl::Status Finalize();
  bool finalized() const;
  // Whether the caller is a forked child, which cannot use it.
  const ForkWatch& forks() const;

  // One object that the layer above keeps per runtime (comm: its transports). It is destroyed before the engine and the
  // segment. Set once, with engine ownership.
  void set_attachment(std::shared_ptr<void> attachment) { attachment_ = std::move(attachment); }
  void* attachment() const { return attachment_.get(); }

  // RuntimeOptions::checks, or what COHORT_CHECK says.
  friend Checks ChecksOf(const Runtime& runtime);

 private:
  Runtime();
  // The options of an epoch's runtime that the next one's has too.
  struct Ways {
    bool stays = false;
    bool progress_thread = false;
    bool detect_deadlocks = true;
    Checks checks = {};
  };
  static absl::StatusOr<std::unique_ptr<Runtime>> Join(std::unique_ptr<Bootstrap> bootstrap,
                                                       std::chrono::nanoseconds timeout, const Ways& ways);
  void Leave(bool goodbye);
  struct Rep;
  std::unique_ptr<Rep> rep_;
  std::shared_ptr<void> attachment_;  // after rep_: destroyed before it
};

}  // namespace cohort::runtime
