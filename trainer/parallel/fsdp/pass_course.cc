#include "cohort/trainer/parallel/fsdp/pass_course.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/fsdp_parts.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Units = std::vector<std::shared_ptr<FsdpUnit>>;

// Said where an exception of the user's has ended the last backward pass of a rank, unless one has on all ranks.
constexpr const char* kGivenUp =
    "FullyShardedDataParallel: an exception has ended the last backward pass of this rank, and not in the same place "
    "on all ranks: what they have sent each other or accumulated no longer fits; wrap the module again";

// Said where this rank has run forward and goes on without a backward pass. Where all ranks do, that is well. Otherwise
// the others wait in their backward passes for gradients that won't come, in other groups than this rank is about to
// wait in.
std::string MissedBackward(const FsdpGroups& groups) {
  const std::string replica =
      groups.replicate() == nullptr ? "" : " of replica " + std::to_string(groups.replicate()->rank());
  return "FullyShardedDataParallel: rank " + std::to_string(groups.reduce().rank()) + " of the shards" + replica +
         " went on after a forward pass without the backward pass that other ranks run: call backward() on all ranks "
         "or on none, or the forward pass under torch::NoGradGuard; wrap the module again";
}

// Whether other ranks take part in a backward pass that begins. Without averaging, and with all parameters there, it
// has no collectives: its exception is a matter of this rank alone. An exception after other passes have accumulated
// concerns the others, because those gradients go with its own and the others have theirs.
bool ConcernsOthers(bool sync, const Units& units) {
  return sync || std::any_of(units.begin(), units.end(), [](const auto& unit) {
           return unit->gradients().flat().defined() || (unit->weights().gathers() && !unit->unsharded());
         });
}

std::vector<int> NeighbourCounts(const Units& units) {
  std::vector<int> counts;
  for (const auto& unit : units) {
    if (unit->backward_ranks() > 0) counts.push_back(unit->backward_ranks());
  }
  return counts;
}

}  // namespace

FsdpParts::FsdpParts(Units model, comm::Communicator& world, comm::Communicator& shard, comm::Communicator* replicate)
    : units(std::move(model)),
      ranks(shard.size() * (replicate == nullptr ? 1 : replicate->size())),
      groups(world, shard, replicate, units.front()->options().reduce_over_world, NeighbourCounts(units)),
      calls(units),
      gatherer(units, groups, calls, tags, traffic),
      reductions(groups, calls, tags, traffic) {}

PassCourse::PassCourse(FsdpParts& parts) : parts_(parts), share_(1.0 / parts.ranks) {}

bool PassCourse::MayFollow(State from, State to) {
  switch (to) {
    case State::kNone:
      return true;
    case State::kEvaluation:
    case State::kAwaited:
    case State::kAnswering:
      return from == State::kNone;
    case State::kForward:
      return from == State::kNone || from == State::kAwaited;
    case State::kAlone:
    case State::kShared:
      return from != State::kAlone && from != State::kShared;
  }
  return false;
}

void PassCourse::Enter(State next) {
  TORCH_INTERNAL_ASSERT(MayFollow(state_, next), "a pass of a sharded model goes from state ", static_cast<int>(state_),
                        " to ", static_cast<int>(next));
  const bool begins_forward = state_ == State::kNone;
  state_ = next;
  if (next == State::kForward && !begins_forward) return;  // it goes on
  if (shown_.has_value()) shown_->Drop();                  // it did not come to its end
  shown_.reset();
  if (next != State::kNone && next != State::kAnswering) {
    shown_.emplace(in_backward() ? "backward" : "forward", runtime::RangeLane::kPasses);
  }
}

void PassCourse::EndForward() {
  if (!in_backward()) shown_.reset();
}

// A forward pass without a backward pass, or one that failed, leaves units gathered, maybe with old values. Gradients
// that a backward pass has brought before an exception ended it must not get into the next average. Nor must gradients
// that passes before it have left in the shards, which have no .grad until then: nobody could have zeroed it.
void PassCourse::StartOver() {
  for (const auto& unit : parts_.units) {
    UnitGradients& gradients = unit->gradients();
    parts_.gatherer.Reshard(*unit);
    if (in_backward()) gradients.flat().Drop();
    gradients.Restore();
    if (state_ == State::kShared) gradients.DropShards();
    gradients.Expect();
  }
  Enter(State::kNone);
  parts_.reductions.Await();
  parts_.reductions.Drop();
  parts_.order.Close();
}

// Fails all ranks with `message` unless all of them call this. They then go on together.
void PassCourse::AgreeOrFail(const std::string& message) {
  std::vector<comm::Communicator*> groups = parts_.groups.All();
  // Ranks that are through with this iteration wait in Join's group for the next one.
  if (parts_.calls.group() != nullptr) groups.push_back(parts_.calls.group());
  const absl::Status agreed = AgreeThatPassEnded(groups, parts_.calls.all_have_inputs(), message);
  if (agreed.ok()) return;
  Fail(message);
  ThrowUnlessOk(agreed, message);
}

// Goes on after a forward pass whose backward pass other ranks may be in.
void PassCourse::MissBackward() {
  if (state_ != State::kAwaited) return;
  ExpectNoBackward();
  if (parts_.calls.all_have_inputs()) AgreeOrFail(MissedBackward(parts_.groups));
}

// Replicas that start from other values would be averaged for ever and never become equal. Parameters may have been
// loaded after they were wrapped, so that this is the first moment to see it. It is the first forward pass that all
// replicas make: one of them may have evaluated alone before.
void PassCourse::CompareReplicas() {
  const FsdpGroups& groups = parts_.groups;
  if (std::exchange(compared_, true) || groups.replicate() == nullptr || groups.replicas() == 1) return;
  const auto starts_alone = [](const auto& unit) { return !unit->options().sync_module_states; };
  if (parts_.calls.group() != nullptr || std::none_of(parts_.units.begin(), parts_.units.end(), starts_alone)) return;
  std::vector<at::Tensor> shards;
  for (const auto& unit : parts_.units) {
    if (unit->weights().shard().defined()) shards.push_back(unit->weights().shard());
  }
  CheckSameValues(*groups.replicate(), "FullyShardedDataParallel", shards,
                  "set sync_module_states, or give all replicas the same values before the first forward pass");
}

void PassCourse::BeginForward(bool training) {
  TORCH_CHECK(
      !in_backward() || !backward_.goes_on_here(),
      "FullyShardedDataParallel: the whole model runs forward within a backward pass of its own, whose gradients "
      "would be lost. In a hook: run it after backward(). In a checkpointed function: checkpoint all its forward "
      "passes, or blocks within it");
  if (state_ == State::kShared) AgreeOrFail(kGivenUp);
  MissBackward();
  const bool averages = averages_ && training && at::GradMode::is_enabled();
  const int divisor = parts_.calls.Begin(parts_.ranks, averages);
  if (averages) CompareReplicas();
  parts_.tags.BeginForward(averages);
  StartOver();
  set_share(divisor);
  Enter(!at::GradMode::is_enabled()    ? State::kEvaluation
        : averages && parts_.ranks > 1 ? State::kAwaited
                                       : State::kForward);
  for (const auto& unit : parts_.units) unit->runs().Keep();
}

void PassCourse::ExpectNoBackward() {
  if (state_ == State::kAwaited) Enter(State::kForward);
}

void PassCourse::EndInputs() {
  MissBackward();
  if (state_ != State::kShared) return;
  AgreeOrFail(kGivenUp);
  StartOver();
}

bool PassCourse::BeginBackward(std::function<void()> at_end) {
  if (in_backward() && backward_.goes_on()) return false;
  if (in_backward()) {  // an exception has ended that one, and no forward pass came between
    if (state_ == State::kShared) AgreeOrFail(kGivenUp);
    StartOver();
  }
  const bool shared = ConcernsOthers(averages_, parts_.units);
  for (const auto& unit : parts_.units) unit->runs().TakeForBackward();
  parts_.reductions.Plan(parts_.order.ForReductions(parts_.units));
  Enter(shared ? State::kShared : State::kAlone);
  backward_.Begin(std::move(at_end));
  return true;
}

void PassCourse::Finish() {
  if (!in_backward()) return;
  try {
    parts_.gatherer.ReshardAll();
    if (averages_) parts_.reductions.LaunchRest();
    if (averages_) parts_.calls.Tell(JoinCalls::Step::kFinish, *parts_.units.front());
    parts_.reductions.Finish();
    for (const auto& unit : parts_.units) {
      unit->gradients().Restore();
      unit->gradients().Expect();
    }
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
  shown_.reset();
  Enter(State::kNone);
  parts_.order.Close();
}

void PassCourse::Fail(const std::string& why) {
  if (in_backward()) Enter(State::kNone);
  parts_.groups.Abort(why);
  parts_.reductions.Await();
}

void PassCourse::BeginAnswers(bool training, int active) {
  parts_.tags.BeginForward(/*averages=*/training);
  StartOver();
  set_share(parts_.calls.DivisorOf(parts_.ranks, active));
  Enter(State::kAnswering);
}

void PassCourse::BeforeAnsweredReduction() {
  if (state_ != State::kAnswering) return;
  for (const auto& unit : parts_.units) unit->gradients().DropShards();
  Enter(State::kNone);
}

void PassCourse::set_share(int ranks) {
  const double share = 1.0 / ranks;
  // Gradients that no_sync has accumulated are part of the next average, and so of its share.
  for (const auto& unit : parts_.units) {
    if (share != share_) unit->gradients().flat().Scale(share / share_);
  }
  share_ = share;
}

}  // namespace cohort::trainer
