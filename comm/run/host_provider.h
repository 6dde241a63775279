// The base of the providers of host memory: a repetition of a prepared call runs in the caller's thread first.
#pragma once

#include "cohort/comm/provider/prepared_call.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/run/inline_run.h"
#include "cohort/runtime/engine/work.h"

namespace cohort::comm {

class HostProvider : public Provider {
 public:
  explicit HostProvider(const GroupContext* group);

  runtime::Work LaunchAgain(PreparedCall& call) final;

 protected:
  // PostAgain. `idle`: nothing is before a call like this one.
  void BeginAgain(PreparedCall& call, const void* in, void* out, bool idle) {
    begun_ = idle ? InlineRunOf(call) : nullptr;
    if (begun_ != nullptr) [[likely]] {
      call.in = in;
      call.out = out;
      begun_->Begin(in, out, call.record);
    } else {
      Provider::PostAgain(call, in, out);
    }
  }
  // Fills the prepared call's `plan` and `inline_run`, where it can have them.
  virtual void Prepare(PreparedCall& call) = 0;

 private:
  // Null: there is none.
  InlineRun* InlineRunOf(PreparedCall& call) {
    if (!call.asked) [[unlikely]] {
      call.asked = true;
      Prepare(call);
    }
    return call.inline_run.get();
  }

  // Queues the repetition, whose inline run has stopped.
  runtime::Work GoOn(PreparedCall& call);

  runtime::BlackBoxWriter& black_box_;
  const int polls_;             // of an inline run, for messages that are not there
  InlineRun* begun_ = nullptr;  // between PostAgain and LaunchAgain
};

}  // namespace cohort::comm
