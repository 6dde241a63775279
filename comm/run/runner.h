// The runner executes one rank's bound plans over links. It is the hot path of every collective that is not NCCL's: no
// virtual call but the transport's one per step, no allocation once a plan of that shape has run, no clock.
//
// Order within a lane is the plan's (comm/plan/plan.h). Sends and publishes are posted at their turn and tried again at
// every Advance until they are done; everything else is finished before the next step starts. A step of zero bytes is
// still a message, so that the two calls are compared even when there is nothing to move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/plan/plan.h"
#include "cohort/comm/request.h"
#include "cohort/comm/run/bound_plan.h"
#include "cohort/comm/run/direct_steps.h"
#include "cohort/comm/run/early_receives.h"
#include "cohort/comm/run/plan_binding.h"
#include "cohort/comm/run/send_queue.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// The runner's source of links: the group. Called once per (lane, peer); links stay until Reset.
class LinkSource {
 public:
  virtual ~LinkSource() = default;
  virtual absl::StatusOr<std::unique_ptr<Link>> MakeLink(int peer, uint16_t lane) = 0;
  // Null where the group has no fan-out: publishes then go as sends. Every member must get the same kind of answer.
  virtual absl::StatusOr<std::unique_ptr<Fanout>> MakeFanout(uint16_t lane) = 0;
};

class PlanRunner {
 public:
  // `source` outlives the runner. The group has `size` ranks, the caller is `rank`.
  PlanRunner(LinkSource* source, int rank, int size);
  ~PlanRunner();
  PlanRunner(const PlanRunner&) = delete;
  PlanRunner& operator=(const PlanRunner&) = delete;

  // Begins an operation; the previous one is done. The plan is bound by the runner itself, unless it still is from a
  // call before. False: it can't be bound; see failure().
  [[nodiscard]] bool Start(std::shared_ptr<const Plan> plan, const PlanBinding& binding);
  // Goes on with a call on `plan` from where its cursors stand. It must stay valid until the operation is done.
  void Start(BoundPlan& plan);
  // A bound plan for calls that repeat one, over this runner's links, for others to keep. Null: it can't be bound, or
  // its steps are too many to be kept. Valid until Reset.
  std::shared_ptr<BoundPlan> Bind(std::shared_ptr<const Plan> plan, const PlanBinding& binding);
  // The link of lane 0 to that peer; null: there is none, and the runner has failed.
  Link* LinkTo(int peer) { return lanes_.empty() ? nullptr : LinkTo(*lanes_.front(), peer); }
  // Publishes what the plan begins with, if it does, and if that is one write. Before the first Advance, which wakes
  // the readers.
  void PublishFirst();
  // Moves what can be moved, boundedly. kDone: the result is in place and the buffers may be reused. kFailed: see
  // failure(); the runner must be Reset.
  Progress Advance();
  // After kDone: the plan was given up at its kOpen, as on all other members, and nothing was moved. The operation goes
  // on with the plan that they all choose instead.
  bool diverted() const { return direct_.diverted(); }
  // Whether the plan's reductions are averages already where averages are wanted (PlanBinding::fold).
  bool divides() const { return direct_.in_use() && !direct_.diverted(); }
  const RunnerFailure& failure() const { return failure_; }
  // Group ranks that the operation is waiting for, ascending; for messages to people.
  std::vector<int> WaitingFor() const;
  // Destroys all links and fan-outs: what is under way is abandoned.
  void Reset();

 private:
  struct Lane {
    BoundPlan::Lane* plan = nullptr;  // with the cursor
    uint16_t lane = 0;
    bool receiving = false;  // `receive` is under way for the step at the cursor
    size_t local_moved = 0;  // bytes of a local step already done
    SendQueue sends;
    RecvOperation own_receive;
    RecvOperation* receive = &own_receive;     // or that of an inline run
    bool receive_failed = false;               // in the inline run
    BoundStep* scanned = nullptr;              // receives before this one are under way, or not to be tried early
    std::unique_ptr<EarlyReceives> early;      // made when first needed
    std::vector<std::byte> incoming;           // what a user's function combines
    std::vector<std::unique_ptr<Link>> links;  // by peer, made when first needed
    std::unique_ptr<Fanout> fanout;
    bool fanout_asked = false;

    bool ended() const { return plan->next == plan->end(); }
    // Goes on with the message that an inline run has begun.
    void TakeUp(BoundPlan::BegunMessage& begun);
    void EndReceive() {
      receiving = receive_failed = false;
      receive = &own_receive;
    }
  };

  // Makes the lanes and fan-outs that the plan needs, and binds it. False: see failure().
  bool BindTo(BoundPlan* bound, std::shared_ptr<const Plan> plan, const PlanBinding& binding);

  SendQueue::Slot& NextSlot(Lane& lane, const BoundStep& step);

  // Each returns false when the operation has failed.
  bool TrySends(Lane& lane, bool* moved);
  bool RunSteps(Lane& lane, bool* moved);
  bool Post(Lane& lane, BoundStep& step, bool* moved);
  bool TrySlot(SendQueue::Slot& slot, bool* moved);
  bool Settle(SendQueue::Slot& slot, Progress progress, bool* moved);
  Progress Receive(Lane& lane, BoundStep& step);
  void FillReceive(Lane& lane, const BoundStep& step, RecvOperation* operation);
  // Handles the outcome of a receive that was tried.
  Progress Received(Lane& lane, const BoundStep& step, RecvOperation& operation, Progress progress);
  // Tries the receives after the cursor, those under way and those that may begin.
  bool ReceiveEarly(Lane& lane, bool* moved);
  bool BeginEarly(Lane& lane, const BoundStep& step, bool* moved);
  Progress RunLocal(Lane& lane, const BoundStep& step);
  Progress RunDirect(Lane& lane, const Step& step);
  // dst = a op b for whole elements.
  // False, and the failure, where the user's function has thrown.
  bool Combine(std::byte* dst, const std::byte* a, const std::byte* b, size_t bytes);
  // The rest of a kRecvReduce whose operand has come, where the op is a user's.
  bool CombineReceived(Lane& lane, const BoundStep& step);
  Link* LinkTo(Lane& lane, int peer);  // null: failed
  // The link of a step that needs one; null: failed.
  Link* LinkOf(Lane& lane, BoundStep& step) {
    if (step.link == nullptr) [[unlikely]]
      step.link = LinkTo(lane, step.peer);
    return step.link;
  }
  bool FanoutOf(Lane& lane, Fanout** out);  // null: there is none
  void Fail(absl::Status status, int peer);

  LinkSource* source_;
  int rank_;
  int size_;
  BoundPlan own_;              // of calls that keep none
  BoundPlan* plan_ = nullptr;  // of the operation; null: there was none
  size_t lanes_in_use_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Fanout*> fanouts_;  // of the plan that is being bound
  Fanout* unwoken_ = nullptr;     // has published quietly
  bool failed_ = false;           // failure_ says why
  DirectSteps direct_;
  RunnerFailure failure_;
};

}  // namespace cohort::comm
