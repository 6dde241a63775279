// Runs a bound plan of short messages in the caller's thread, before its call is queued. Where a message is not done
// soon, the plan's cursor stays at that step, and the call becomes an operation that goes on with the same message.
//
// Nothing is reported here. Where a message fails, the operation finds it failed and deals with it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cohort/comm/run/bound_plan.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/engine/wait_policy.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// By the engine's owner.
class InlineRun {
 public:
  // Returns the link to a peer; null: there is none.
  using LinkTo = std::function<Link*(int peer)>;
  // Null: the plan is not run so. It has one lane of few steps with little data, no direct step, and every link takes
  // its messages inline (InlineTerms). `plan` outlives the run, which fills in what BoundStep holds for it.
  // `divisor`: above 1, the output is divided by it at the end, for averages.
  static std::unique_ptr<InlineRun> Of(BoundPlan* plan, int divisor, const LinkTo& link);
  InlineRun(const InlineRun&) = delete;
  InlineRun& operator=(const InlineRun&) = delete;

  // Begins a call: sends what its plan begins with. Readers that sleep are left asleep until Run. `call` stays until
  // the call is done, or BoundPlan::SetRecord.
  [[gnu::always_inline]] void Begin(const void* in, void* out, const runtime::CallRecord& call) {
    plan_.SetCall(in, out, &call);
    BoundStep* step = begin_;
    while (step != opened_ && Send(*step)) ++step;
    lane_.next = step;
  }
  // Does the other steps, and looks for messages that are not there for as long as `polls` looks into shared memory
  // take. True: the call is done, its result in place. False: an operation goes on from the plan's cursor.
  bool Run(int polls);

  // Whether a call that is done here has taken no longer than about a microsecond.
  bool at_once() const { return at_once_; }

 private:
  InlineRun(BoundPlan* plan, int divisor, bool at_once);

  // The end of an average.
  void Divide() const;
  // Each: false when the step is not done.
  bool Do(BoundStep& step, int* polls) {
    if (step.receives()) return Receive(step, polls);
    if (!step.sends()) return RunLocal(step);
    const bool sent = Send(step);
    Wake(step);
    return sent;
  }
  bool Send(BoundStep& step) {
    SendOperation& send = plan_.begun().send;
    plan_.Fill(step, &send);
    const Progress progress =
        step.fanout != nullptr ? step.fanout->TryPublishQuietly(send) : step.link->TrySendQuietly(send);
    return progress == Progress::kDone || Leave(progress);
  }
  bool Receive(BoundStep& step, int* polls) {
    RecvOperation& receive = plan_.begun().receive;
    plan_.Fill(step, &receive);
    for (;;) {
      const Progress progress =
          step.fanout != nullptr ? step.fanout->TryRecv(step.peer, receive) : step.link->TryRecv(receive);
      if (progress == Progress::kDone) return true;
      *polls -= step.look_cost;
      if (progress == Progress::kFailed || *polls < 0) return Leave(progress);
      runtime::Pause();
    }
  }
  bool RunLocal(const BoundStep& step);
  // Leaves the message that was begun, and is not done, to the operation. False.
  bool Leave(Progress progress) {
    plan_.begun().state = progress == Progress::kFailed ? MessageState::kFailed : MessageState::kUnderWay;
    return false;
  }
  static void Prepare(const BoundStep& step) {
    step.fanout != nullptr ? step.fanout->Prepare(step.bytes) : step.link->Prepare(step.bytes);
  }
  static void Wake(const BoundStep& step) { step.fanout != nullptr ? step.fanout->Wake() : step.link->Wake(); }

  BoundPlan& plan_;
  BoundPlan::Lane& lane_;
  BoundStep* const begin_;   // of the lane
  BoundStep* const opened_;  // the first that sends nothing
  BoundStep* const end_;
  std::vector<const BoundStep*> prepared_;  // sends whose room is fetched when the call is done (Prepare)
  const int divisor_;
  const bool at_once_;
};

// Without a call of its own, an all-reduce of 8 B takes 13 instructions fewer.
[[gnu::always_inline]] inline bool InlineRun::Run(int polls) {
  BoundStep* step = lane_.next;
  for (const BoundStep* sent = begin_; sent != step; ++sent) Wake(*sent);
  if (plan_.begun().state != MessageState::kNone) [[unlikely]] {
    Wake(*step);  // some of it may have left
    return false;
  }
  for (; step != end_; ++step) {
    if (Do(*step, &polls)) continue;
    lane_.next = step;
    return false;
  }
  for (const BoundStep* prepared : prepared_) Prepare(*prepared);
  if (divisor_ > 1) Divide();
  return true;
}

}  // namespace cohort::comm
