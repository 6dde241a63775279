// Runtime: what any rank needs before it communicates. One object per process and epoch; everything else refers to it.
//
// An epoch is the time from one start of the job's ranks to their next start: the job's first is number 1. World size,
// ranks and nodes are fixed in it; who has been lost stays lost.
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
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

struct RuntimeOptions {
  std::chrono::nanoseconds init_timeout = std::chrono::seconds(60);
  // Drive operations in a thread of their own while the program computes (overlap).
  bool progress_thread = false;
  // How to join; chosen from the environment when null (COHORT_AGENT: the agent; else a world of one, which is refused
  // with kFailedPrecondition where another launcher's variables say that there are several: README.md).
  std::unique_ptr<Bootstrap> bootstrap = nullptr;
  // This process means to live on when another rank fails and the job is restarted (NextEpoch): it is not told to end.
  bool stays = false;
};

// Who hears of failures: communicators, transports. Called by the engine's owner.
class MembershipListener : public BootstrapListener {
 public:
  // This rank ends in order: nothing that is under way will be heard of any more.
  virtual void OnFinalize() {}
};

class Runtime {
 public:
  // Blocks until this rank knows who it is. kDeadlineExceeded, kUnavailable or kFailedPrecondition with the cause and
  // the remedy.
  static absl::StatusOr<std::unique_ptr<Runtime>> Init(RuntimeOptions options = {});
  // Ends in order, as Finalize does, if that was not called; errors are then lost.
  ~Runtime();

  // After a failure, in a job that dlaunch restarts (--max-restarts) and that this process joined with
  // RuntimeOptions::stays: leaves the epoch, waits for the next and joins it, in this process. What is expensive to
  // build up (data, caches, compiled models) stays; ranks that have died, or do not come, are started anew, and on
  // another node where theirs is lost.
  //
  //   while (true) {
  //     const absl::Status trained = TrainFromCheckpoint(*runtime);  // makes its communicators, and destroys them
  //     if (!absl::IsUnavailable(trained)) return trained;
  //     absl::StatusOr<std::unique_ptr<Runtime>> next = Runtime::NextEpoch(std::move(runtime));
  //     if (!next.ok()) return next.status();
  //     runtime = *std::move(next);
  //   }
  //
  // Everything that refers to `ended` must be gone: communicators, windows, works. The new runtime has a new epoch, an
  // empty store and, where nodes were lost without spares, other ranks (identity(); COHORT_EPOCH, RANK, MASTER_PORT and
  // the like in the environment tell of this process' start). It has the options of the first. A rank that stays has
  // dlaunch's --grace from the failure on to call this, then it is killed and started anew. Called on all living ranks
  // although none has failed it begins a new epoch too, which counts as a restart.
  //
  // Blocks; the time covers the end of the other ranks, the pause before the restart and their start.
  // kDeadlineExceeded; kFailedPrecondition: `ended` was made without RuntimeOptions::stays, was finalized, is of a
  // forked child, or dlaunch does not restart this job; kUnimplemented: not under dlaunch; kInvalidArgument: null;
  // otherwise as Init. `ended` is gone in any case, and this rank has left in order where it is refused; only in a
  // forked child, to which it never belonged, nothing of it is touched.
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
  // The node of a world rank, and its local rank there. `rank` is one of this job: another one ends the program.
  int node_of(int rank) const;
  int local_rank_of(int rank) const;

  Engine& engine();
  Segment& segment();
  // The job's key-value store, for addresses. Blocking; may be called with or without engine ownership. Keys have 1 to
  // 1024 bytes and values at most 49152, else kInvalidArgument. Get fails with kNotFound where nobody had put the key
  // by the deadline, with kDeadlineExceeded where that could not be learned. In a forked child kFailedPrecondition.
  absl::Status Put(std::string_view key, std::string_view value, Deadline deadline);
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline);

  // Why `rank` can't be reached any more, or OK. Sticky within an epoch. kInvalidArgument: no rank of this job.
  absl::Status rank_status(int rank) const;
  // Takes engine ownership. A new listener is told at once of the epoch's earlier group failures (the latest 64), of
  // which its group may be one; it asks rank_status for ranks lost earlier.
  void AddListener(MembershipListener* listener);
  void RemoveListener(MembershipListener* listener);
  void ReportStall(uint64_t group, uint64_t sequence, const RankSet& members, bool expired);
  void ReportGroupFailure(const GroupFailure& failure);
  // Asks this node's agent to kill this process, for `why`: something of it goes on that can't be stopped from inside.
  // Returns at once; false when there is no agent.
  bool AskToBeKilled(const std::string& why);
  // Whether the job is told to end soon (preempted, or out of time) and every rank stops before `step`, the same for
  // all: true means save what is to last, and end. Every rank asks before each of its steps, with the same numbers,
  // which only fall where the program goes back after a failure (Communicator::Shrink). From the first call
  // of any rank on, the signals by which schedulers tell (SIGTERM, SIGUSR1, SIGUSR2 at dlaunch or at an agent) reach no
  // program of the job as signals, after a restart neither.
  //
  //   for (uint64_t step = first; step < last; ++step) {
  //     const absl::StatusOr<bool> stop = runtime->OnPreemption(step);
  //     if (!stop.ok()) return stop.status();
  //     if (*stop) return SaveCheckpoint(step);  // and go on from it when the job is run again
  //     Train(step);
  //   }
  //
  // Costs a look at a word as long as nobody tells. Then it blocks, once, until every rank has said what it has begun,
  // which those do that are within a step as soon as they look at their calls: all stop before the first step that
  // nobody has begun (launcher/control/step_agreement.h). False for good where a rank has ended before it was told.
  // SIGTERM leaves the ranks dlaunch's --grace from the signal on, then they are killed. Where there is no agent
  // (RuntimeOptions::bootstrap) nobody tells.
  //
  // kInvalidArgument: `step` is below the one before, and nothing has failed; kDeadlineExceeded: a rank does not ask;
  // kUnavailable: a rank was lost meanwhile; kFailedPrecondition: finalized, in a forked child, or `step` is beyond the
  // agreed one. After kDeadlineExceeded or kUnavailable the step must not be begun: end, or ask again, before this
  // step or, after a loss, an earlier one. One thread at a time.
  absl::StatusOr<bool> OnPreemption(uint64_t step, std::chrono::nanoseconds timeout = std::chrono::minutes(10));

  // Failures of groups that arrived after this rank's calls had already returned success, and calls that report them.
  // The first is kept for Finalize, unless a call has reported it by then.
  void NoteUnreportedFailure(const absl::Status& status);
  void NoteReportedFailure(const absl::Status& status);

  // Ends in order: stops the progress thread, says goodbye. Returns a failure that no call has reported yet. What is
  // under way, and every later call of a communicator, fails with kFailedPrecondition. Afterwards only the accessors
  // may be used. In a forked child it does nothing: the parent goes on.
  absl::Status Finalize();
  bool finalized() const;
  // Forks() when this runtime was made: another number now, and the caller is a child that can't use it.
  uint64_t forks_at_init() const;

  // One object that the layer above keeps per runtime (comm: its transports). Destroyed before the engine and the
  // segment. Set once, with engine ownership.
  void set_attachment(std::shared_ptr<void> attachment) { attachment_ = std::move(attachment); }
  void* attachment() const { return attachment_.get(); }

 private:
  Runtime();
  static absl::StatusOr<std::unique_ptr<Runtime>> Join(std::unique_ptr<Bootstrap> bootstrap,
                                                       std::chrono::nanoseconds timeout, bool progress_thread);
  void Leave(bool goodbye);
  struct Rep;
  std::unique_ptr<Rep> rep_;
  std::shared_ptr<void> attachment_;  // after rep_: destroyed before it
};

}  // namespace cohort::runtime
