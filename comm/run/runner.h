// The runner executes one rank's plan over links. It is the hot path of every collective that is not NCCL's: no virtual
// call but the transport's one per step, no allocation once a plan of that shape has run, no clock.
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
#include "cohort/comm/provider/short_call.h"
#include "cohort/comm/request.h"
#include "cohort/comm/run/bound_memory.h"
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

  // Begins an operation; the previous one is done. `plan` must stay valid until this one is. `begun`, unless null, has
  // done the plan's first steps. False: there is no memory for the plan's scratch; see failure().
  [[nodiscard]] bool Start(const Plan& plan, const PlanBinding& binding, const ShortCall* begun = nullptr);
  // The short way of operations on this plan (shorten.h) over this runner's links, once one such operation is done.
  // Null: there is none. Valid until Reset.
  std::unique_ptr<ShortCall> Shorten(const Plan& plan, const PlanBinding& binding, int divisor);
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
    const Step* cursor = nullptr;
    const Step* end = nullptr;
    uint16_t lane = 0;
    bool receiving = false;  // `receive` is under way for the step at the cursor
    size_t local_moved = 0;  // bytes of a local step already done
    int parts_sent = 0;      // of the publish at the cursor: how many peers have been sent it by a short call
    SendQueue sends;
    RecvOperation receive;
    const Step* scanned = nullptr;             // receives before this one are under way, or not to be tried early
    std::unique_ptr<EarlyReceives> early;      // made when first needed
    std::vector<std::byte> incoming;           // what a user's function combines
    std::vector<std::unique_ptr<Link>> links;  // by peer, made when first needed
    std::unique_ptr<Fanout> fanout;
    bool fanout_asked = false;
  };
  using Range = BoundMemory::Range;

  // The signature of a message: where lengths differ by block it holds the length, too.
  uint64_t SignatureOf(const Range& range) const {
    if (memory_.unequal()) [[unlikely]]
      return runtime::SignatureWithLength(binding_.signature, range.bytes);
    return binding_.signature;
  }

  SendQueue::Slot& NextSlot(Lane& lane, const Range& range, Link* link, Fanout* fanout, int peer);

  // Each returns false when the operation has failed.
  bool TrySends(Lane& lane, bool* moved);
  bool RunSteps(Lane& lane, bool* moved);
  bool Post(Lane& lane, const Step& step, bool* moved);
  bool PostTo(Lane& lane, const Range& range, Link* link, Fanout* fanout, int peer, bool* moved);
  bool TrySlot(SendQueue::Slot& slot, bool* moved);
  bool Settle(SendQueue::Slot& slot, Progress progress, bool* moved);
  Progress Receive(Lane& lane, const Step& step);
  void FillReceive(Lane& lane, const Step& step, RecvOperation* operation);
  // Handles the outcome of a receive that was tried.
  Progress Received(Lane& lane, const Step& step, RecvOperation& operation, Progress progress);
  // Tries the receives after the cursor, those under way and those that may begin.
  bool ReceiveEarly(Lane& lane, bool* moved);
  bool BeginEarly(Lane& lane, const Step& step, Link& link, bool* moved);
  Progress RunLocal(Lane& lane, const Step& step);
  Progress RunDirect(Lane& lane, const Step& step);
  // dst = a op b for whole elements.
  // False, and the failure, where the user's function has thrown.
  bool Combine(std::byte* dst, const std::byte* a, const std::byte* b, size_t bytes);
  // The rest of a kRecvReduce whose operand has come, where the op is a user's.
  bool CombineReceived(Lane& lane, const Step& step);
  Link* LinkTo(Lane& lane, int peer);       // null: failed
  bool FanoutOf(Lane& lane, Fanout** out);  // null: there is none
  void Fail(absl::Status status, int peer);

  LinkSource* source_;
  int rank_;
  int size_;
  PlanBinding binding_;
  BoundMemory memory_;
  size_t lanes_in_use_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Fanout* unwoken_ = nullptr;  // has published quietly
  bool failed_ = false;        // failure_ says why
  DirectSteps direct_;
  RunnerFailure failure_;
};

}  // namespace cohort::comm
