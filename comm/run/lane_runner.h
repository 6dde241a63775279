// Executes one lane of bound plans over links: a collective's lane, or the one step of a send or a receive.
//
// Order within a lane is the plan's (comm/plan/plan.h). Sends and publishes are posted at their turn and tried again at
// every Advance until they are done; everything else is finished before the next step starts. A step of zero bytes is
// still a message, so that the two calls are compared even when there is nothing to move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/plan/plan.h"
#include "cohort/comm/run/bound_plan.h"
#include "cohort/comm/run/direct_steps.h"
#include "cohort/comm/run/early_receives.h"
#include "cohort/comm/run/plan_binding.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm {

// The source of a lane's links: the group. Called once per (lane, peer); links stay until the lane goes.
class LinkSource {
 public:
  virtual ~LinkSource() = default;
  virtual absl::StatusOr<std::unique_ptr<Link>> MakeLink(int peer, uint16_t lane) = 0;
  // Null where the group has no fan-out: publishes then go as sends. Every member must get the same kind of answer.
  virtual absl::StatusOr<std::unique_ptr<Fanout>> MakeFanout(uint16_t lane) = 0;
};

// The sends and publishes of one lane that were begun, in order.
// Slots are reused, so that a steady state allocates nothing. The address of one is stable while its message is under
// way.
class SendQueue {
 public:
  struct Slot {
    SendOperation own;
    SendOperation* operation = &own;  // or that of an inline run
    Link* link = nullptr;             // or
    Fanout* fanout = nullptr;         // (a publish)
    int32_t peer = -1;
    int32_t step = 0;  // the number of its step among the lane's sends and publishes
    MessageState state = MessageState::kUnderWay;
  };

  // Forgets everything, for the next operation. `steps`: those of its sends and publishes that are done.
  void Clear(int32_t steps) {
    head_ = tail_ = 0;
    steps_ = steps;
  }
  bool empty() const { return head_ == tail_; }
  // The slot for the message of the next step, for the caller to fill its operation. It joins the queue by Keep.
  Slot& Next(const BoundStep& step) {
    if (tail_ == slots_.size()) slots_.push_back(std::make_unique<Slot>());
    Slot& slot = *slots_[tail_];
    slot.operation = &slot.own;
    slot.link = step.link;
    slot.fanout = step.fanout;
    slot.peer = step.fanout != nullptr ? -1 : step.peer;
    slot.step = steps_;
    slot.state = MessageState::kUnderWay;
    return slot;
  }
  static Progress Try(Slot& slot) {
    if (slot.state == MessageState::kFailed) [[unlikely]]
      return Progress::kFailed;
    return slot.fanout != nullptr ? slot.fanout->TryPublish(*slot.operation) : slot.link->TrySend(*slot.operation);
  }
  // Only unfinished messages are kept; a finished one behind nothing leaves no trace.
  void Keep(const Slot& slot) {
    if (slot.state != MessageState::kDone || !empty()) ++tail_;
  }
  // All messages of a step have been begun.
  void NextStep() { ++steps_; }
  // The number of steps of which all messages are done, counted without gaps.
  int32_t completed() const { return empty() ? steps_ : slots_[head_]->step; }

  // Calls function(slot) for every message that is not done, until one returns false. Then drops those in front that
  // are done.
  template <typename Function>
  bool ForEachPending(Function function) {
    for (uint32_t i = head_; i != tail_; ++i) {
      if (slots_[i]->state != MessageState::kDone && !function(*slots_[i])) return false;
    }
    while (!empty() && slots_[head_]->state == MessageState::kDone) ++head_;
    if (empty()) head_ = tail_ = 0;
    return true;
  }
  // Adds the peers of messages that are not done.
  void AddPeers(std::vector<int>* peers) const {
    for (uint32_t i = head_; i != tail_; ++i) {
      if (slots_[i]->state != MessageState::kDone && slots_[i]->peer >= 0) peers->push_back(slots_[i]->peer);
    }
  }

 private:
  int32_t steps_ = 0;  // sends and publishes begun
  uint32_t head_ = 0;  // first slot that is not done
  uint32_t tail_ = 0;  // one past the last slot in use
  std::vector<std::unique_ptr<Slot>> slots_;
};

class LaneRunner {
 public:
  // `source` outlives it; null where all steps have their links.
  LaneRunner(LinkSource* source, uint16_t lane) : source_(source), lane_(lane) {}
  LaneRunner(const LaneRunner&) = delete;
  LaneRunner& operator=(const LaneRunner&) = delete;

  // Goes on with lane `index` of `plan` from where its cursor stands; the lane before is done. `direct` runs the steps
  // that reach for other ranks' memory; null: there are none. Both stay valid until the lane is done.
  void Start(BoundPlan& plan, size_t index, DirectSteps* direct);
  // Publishes what the lane begins with, if it does, and if that is one write. Before the first Advance, which wakes
  // the readers.
  void PublishFirst();
  // Moves what can be moved, boundedly. kFailed: see failure(); the runner is of no use then.
  Progress Advance();

  // The link to that peer; null: there is none, and the runner has failed.
  Link* LinkTo(int peer);
  // The lane's fan-out, null where there is none. False: the runner has failed.
  bool FanoutOf(Fanout** out);
  bool failed() const { return failed_; }
  const RunnerFailure& failure() const { return failure_; }
  // Adds the group ranks that the lane is waiting for.
  void AddWaitingFor(std::vector<int>* peers) const;

 private:
  bool ended() const { return cursor_->next == cursor_->end(); }
  // Goes on with the message that an inline run has begun.
  void TakeUp(BoundPlan::BegunMessage& begun);
  void EndReceive() {
    receive_state_ = MessageState::kNone;
    receive_ = &own_receive_;
  }

  // Each returns false when the operation has failed.
  bool TrySends(bool* moved);
  bool RunSteps(bool* moved);
  bool Post(BoundStep& step, bool* moved);
  bool Settle(SendQueue::Slot& slot, Progress progress, bool* moved);
  Progress Receive(BoundStep& step);
  void FillReceive(const BoundStep& step, RecvOperation* operation);
  // Handles the outcome of a receive that was tried.
  Progress Received(const BoundStep& step, RecvOperation& operation, Progress progress);
  // Tries the receives after the cursor, those under way and those that may begin.
  bool ReceiveEarly(bool* moved);
  Progress RunLocal(const BoundStep& step);
  Progress RunDirect(const Step& step);
  // dst = a op b for whole elements. False, and the failure, where the user's function has thrown.
  bool Combine(std::byte* dst, const std::byte* a, const std::byte* b, size_t bytes);
  // The link of a step that needs one; null: failed.
  Link* LinkOf(BoundStep& step) {
    if (step.link == nullptr) [[unlikely]]
      step.link = LinkTo(step.peer);
    return step.link;
  }
  void Fail(absl::Status status, int peer);

  LinkSource* const source_;
  const uint16_t lane_;
  BoundPlan* plan_ = nullptr;  // of the operation
  BoundPlan::Lane* cursor_ = nullptr;
  DirectSteps* direct_ = nullptr;
  size_t local_moved_ = 0;  // bytes of a local step already done
  SendQueue sends_;
  RecvOperation own_receive_;
  RecvOperation* receive_ = &own_receive_;            // or that of an inline run
  MessageState receive_state_ = MessageState::kNone;  // of the step at the cursor
  BoundStep* scanned_ = nullptr;              // receives before this one are under way, or not to be tried early
  std::unique_ptr<EarlyReceives> early_;      // made when first needed
  std::vector<const void*> operands_;         // of a fold
  std::vector<std::byte> incoming_;           // what a user's function combines
  std::vector<std::unique_ptr<Link>> links_;  // by peer, made when first needed
  std::unique_ptr<Fanout> fanout_;
  bool fanout_asked_ = false;
  Fanout* unwoken_ = nullptr;  // has published quietly
  bool failed_ = false;        // failure_ says why
  RunnerFailure failure_;
};

}  // namespace cohort::comm
