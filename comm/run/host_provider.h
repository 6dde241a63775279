// The base of the providers of host memory: a prepared call that repeats runs in the caller's thread first.
#pragma once

#include <utility>

#include "cohort/comm/provider/operation.h"
#include "cohort/comm/provider/prepared_call.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/run/inline_run.h"
#include "cohort/runtime/engine/work.h"

namespace cohort::comm {

class HostProvider : public Provider {
 public:
  explicit HostProvider(const GroupContext* group);
  ~HostProvider() override;

  runtime::Work Run(PreparedCall& call) final;

 protected:
  AcceptedCall& NextCall() final;
  // Start. `idle`: nothing is before a call like this one.
  [[gnu::always_inline]] void StartCall(PreparedCall& call, const void* in, void* out, bool idle) {
    begun_ = idle ? InlineRunOf(call) : nullptr;
    if (begun_ != nullptr) [[likely]] {
      call.in = in;
      call.out = out;
      begun_->Begin(in, out, call.record);
    } else {
      Provider::Start(call, in, out);
    }
  }
  // The bound plan that the operation's prepared call keeps, at the step from which the operation goes on. Null: there
  // is none.
  static BoundPlan* TakeUp(const AcceptedCall& call);
  // Fills the prepared call's `plan` and `inline_run`, where it can have them.
  virtual void Prepare(PreparedCall& call) = 0;
  // The operation that holds NextCall. TakeNext: the caller queues it.
  Operation* next() const { return next_; }
  Operation* TakeNext() { return std::exchange(next_, nullptr); }

 private:
  // Null: there is none.
  InlineRun* InlineRunOf(PreparedCall& call) {
    if (call.stage != PreparedCall::Stage::kAsked) [[unlikely]]
      Ask(call);
    return call.inline_run.get();
  }
  void Ask(PreparedCall& call);

  // Queues the call, whose inline run has stopped.
  runtime::Work GoOn(PreparedCall& call);

  runtime::BlackBoxWriter& black_box_;
  OperationPool pool_;
  Operation* next_ = nullptr;
  const int polls_;             // of an inline run, for messages that are not there
  InlineRun* begun_ = nullptr;  // between Start and Run
};

}  // namespace cohort::comm
