#include "cohort/comm/run/host_provider.h"

#include <utility>

namespace cohort::comm {
namespace {

// Looks of an inline run for messages that are not there, with a pause after each: for about 1.5 us (where a pause
// takes 23 ns), and not at all where the rank that sends them may need this CPU.
int InlinePolls(const runtime::Segment& segment) { return segment.local_ranks() > segment.cpus() ? 0 : 64; }

}  // namespace

HostProvider::HostProvider(const GroupContext* group)
    : black_box_(group->runtime->segment().black_box()),
      pool_(&group->runtime->engine(), group->source),
      polls_(InlinePolls(group->runtime->segment())) {}

HostProvider::~HostProvider() {
  if (next_ != nullptr) pool_.Discard(next_);
}

AcceptedCall& HostProvider::NextCall() {
  if (next_ == nullptr) next_ = pool_.Take();
  return next_->call;
}

void HostProvider::Ask(PreparedCall& call) {
  if (call.stage == PreparedCall::Stage::kNew) return;
  call.stage = PreparedCall::Stage::kAsked;
  Prepare(call);
}

BoundPlan* HostProvider::TakeUp(const AcceptedCall& call) {
  BoundPlan* const plan = call.plan.get();
  if (plan == nullptr) return nullptr;
  if (call.begun) {
    plan->SetRecord(&call.record);
  } else {
    plan->SetCall(call.request.in, call.request.out, &call.record);
    plan->Rewind();
  }
  return plan;
}

runtime::Work HostProvider::Run(PreparedCall& call) {
  InlineRun* const run = std::exchange(begun_, nullptr);
  if (run == nullptr) return Provider::Run(call);
  // A receive looks once: it is often made long before its message comes.
  if (!run->Run(call.request.kind == CollectiveKind::kRecv ? 0 : polls_)) [[unlikely]]
    return GoOn(call);
  ++call.counts->done;
  black_box_.Finish(call.ticket, runtime::CallState::kDone, run->at_once());
  return runtime::Work();
}

runtime::Work HostProvider::GoOn(PreparedCall& call) {
  ++call.counts->continued;
  AcceptedCall& next = FillNextCall(call);
  next.begun = true;
  next.ticket = call.ticket;
  Post();
  return Launch(next);
}

}  // namespace cohort::comm
