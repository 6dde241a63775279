// Runs a bound plan of short messages in the caller's thread, before its call is queued. Every step is done whole or
// not at all. Where a message does not come soon, the plan's cursor stays at that step, and the call becomes an
// operation that goes on there.
//
// Nothing fails here. Whatever is out of order (another signature, a damaged slot, a full stream) leaves the step
// undone, so that the operation meets it again and deals with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cohort/comm/run/bound_plan.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/engine/wait_policy.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// By the engine's owner. Senders and receivers belong to the plan's links and outlive it.
class InlineRun {
 public:
  // Returns the link to a peer; null: there is none.
  using LinkTo = std::function<Link*(int peer)>;
  // Null: the plan is not run so. It has one lane of few steps with little data, no direct step, and every link has
  // streams that take its messages as short ones. `plan` outlives the run, which fills in what BoundStep holds for it.
  // `divisor`: above 1, the output is divided by it at the end, for averages.
  static std::unique_ptr<InlineRun> Of(BoundPlan* plan, int divisor, const LinkTo& link);
  InlineRun(const InlineRun&) = delete;
  InlineRun& operator=(const InlineRun&) = delete;

  // Begins a call: sends what its plan begins with. Readers that sleep are left asleep until Run. `call` stays until
  // the call is done, or BoundPlan::SetRecord.
  void Begin(const void* in, void* out, const runtime::CallRecord& call) {
    plan_.SetCall(in, out, &call);
    BoundStep* step = begin_;
    while (step != end_ && step->sender != nullptr && step->sender->Send(plan_.At(step->src), step->bytes, call))
      ++step;
    lane_.next = step;
  }
  // Does the other steps, and looks for messages that are not there for as long as `polls` looks into shared memory
  // take. True: the call is done, its result in place. False: an operation goes on from the plan's cursor.
  bool Run(int polls);

  // Whether a call that is done here has taken no longer than about a microsecond.
  bool at_once() const { return at_once_; }
  // After Run was false: whether it stopped at a message that only an operation can send or take. The next ones of this
  // call will probably be such ones too: the buffer lies in shared memory, or is read by the peer's kernel.
  bool takes_operation() const { return takes_operation_; }
  // Calls that were done here so far.
  uint64_t calls_done() const { return calls_done_; }

 private:
  InlineRun(BoundPlan* plan, int divisor);

  // Leaves those that call at the same time the time to send, before the first look for a message.
  void WaitForOthers(const BoundStep& first) const;
  // The end of an average.
  void Divide() const;
  // Both: false when nothing was done.
  bool Do(const BoundStep& step);
  bool Receive(BoundStep& step, int* polls) {
    step.receive.data = plan_.At(step.dst);
    step.receive.operand = plan_.At(step.src);
    step.receive.signature = plan_.binding().signature;
    while (!step.receiver->Receive(step.receive)) {
      takes_operation_ = step.bytes > kMostShortBytes && step.receiver->TakesOperation();
      *polls -= step.look_cost;
      if (takes_operation_ || *polls < 0) return false;
      runtime::Pause();
    }
    return true;
  }

  BoundPlan& plan_;
  BoundPlan::Lane& lane_;
  BoundStep* const begin_;  // of the lane
  BoundStep* const end_;
  std::vector<const BoundStep*> prepared_;  // sends whose room is fetched when the call is done (Prepare)
  const int divisor_;
  bool at_once_ = true;
  bool takes_operation_ = false;
  uint64_t calls_done_ = 0;
};

// Without a call of its own, an all-reduce of 8 B takes 13 instructions fewer.
[[gnu::always_inline]] inline bool InlineRun::Run(int polls) {
  BoundStep* step = lane_.next;
  for (const BoundStep* sent = begin_; sent != step; ++sent) sent->sender->Wake();
  if (polls > 0 && step != end_ && step->receiver != nullptr) WaitForOthers(*step);
  for (; step != end_; ++step) {
    if (step->receiver != nullptr ? Receive(*step, &polls) : Do(*step)) continue;
    lane_.next = step;
    return false;
  }
  ++calls_done_;
  for (const BoundStep* prepared : prepared_) prepared->sender->Prepare(prepared->bytes);
  if (divisor_ > 1) Divide();
  return true;
}

}  // namespace cohort::comm
