#include "cohort/trainer/parallel/fsdp/fsdp_root.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/backward_cycle.h"
#include "cohort/trainer/parallel/fsdp/flat_parameters.h"
#include "cohort/trainer/parallel/fsdp/fsdp_groups.h"
#include "cohort/trainer/parallel/fsdp/fsdp_stage.h"
#include "cohort/trainer/parallel/fsdp/gradient_reductions.h"
#include "cohort/trainer/parallel/fsdp/join_calls.h"
#include "cohort/trainer/parallel/fsdp/unit_gatherer.h"
#include "cohort/trainer/parallel/fsdp/unit_gradients.h"
#include "cohort/trainer/parallel/fsdp/unit_order.h"
#include "cohort/trainer/transfer/collectives.h"
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

std::vector<int> NeighbourCounts(const Units& units) {
  std::vector<int> counts;
  for (const auto& unit : units) {
    if (unit->backward_ranks() > 0) counts.push_back(unit->backward_ranks());
  }
  return counts;
}

// Whether other ranks take part in a backward pass that begins. Without averaging, and with all parameters there, it
// has no collectives: its exception is a matter of this rank alone. An exception after other passes have accumulated
// concerns the others, because those gradients go with its own and the others have theirs.
bool ConcernsOthers(bool sync, const Units& units) {
  return sync || std::any_of(units.begin(), units.end(), [](const auto& unit) {
           return unit->gradients().flat().defined() || (unit->weights().gathers() && !unit->unsharded());
         });
}

bool MayGoBackward(const std::vector<at::Tensor>& outputs) {
  return std::any_of(outputs.begin(), outputs.end(),
                     [](const at::Tensor& output) { return output.defined() && output.requires_grad(); });
}

// A pass would take the whole parameters away, and what was changed in them.
void RefuseWhileSummoned(bool summoned, const char* pass) {
  TORCH_CHECK(!summoned, "FullyShardedDataParallel: a ", pass,
              " pass under SummonFullParams, where parameters are whole and may have changed; run it after that");
}

// Reshards units that backward is through with when it comes to `next`. Nodes of a graph run against the order in
// which they were made: those of a unit have run when backward comes to a unit that was over before it. (Not yet when
// that is within the unit, or around it.)
void ReshardPassed(std::vector<FsdpUnit*>& passing, const FsdpUnit& next, UnitGatherer& gatherer) {
  const auto passed = [&](FsdpUnit* unit) {
    return next.runs().ended_before(unit->runs()) && unit->has_all_gradients();
  };
  for (FsdpUnit* unit : passing) {
    if (passed(unit)) gatherer.Reshard(*unit);
  }
  std::erase_if(passing, passed);
}

}  // namespace

FsdpRoot::FsdpRoot(Units units, comm::Communicator& world, comm::Communicator& shard, comm::Communicator* replicate)
    : units_(std::move(units)),
      replicate_(replicate),
      ranks_(shard.size() * (replicate == nullptr ? 1 : replicate->size())),
      share_(1.0 / ranks_),
      groups_(std::make_unique<FsdpGroups>(world, shard, replicate, units_.front()->options().reduce_over_world,
                                           NeighbourCounts(units_))),
      calls_(std::make_unique<JoinCalls>(units_)),
      order_(std::make_unique<UnitOrder>()),
      tags_(std::make_unique<UnitTags>()),
      gatherer_(std::make_unique<UnitGatherer>(units_, *groups_, *calls_, *tags_, traffic_)),
      reductions_(std::make_unique<GradientReductions>(*groups_, *calls_, *tags_, traffic_)),
      backward_(std::make_unique<BackwardCycle>()),
      stage_(std::make_unique<FsdpStage>(*this)) {
  for (size_t i = 0; i < units_.size(); ++i) units_[i]->set_number(static_cast<int>(i));
}

FsdpRoot::~FsdpRoot() {
  // Units go later, and may have been gathering ahead.
  for (comm::Communicator* group : groups_->All()) NoteGroupEnd(*group);
  // An exception of the user's has ended a pass, here or in Join: the other ranks wait for what this one won't send.
  if (backward_->begun() || !reductions_->empty()) {
    groups_->Abort("FullyShardedDataParallel was destroyed within a backward pass");
  }
  reductions_->Await();
  reductions_->Drop();
  groups_->CloseWindowGroups();
  for (const auto& unit : units_) unit->LeaveWindows();
}

comm::Communicator& FsdpRoot::norm_group() const { return groups_->reduce(); }

// Prepares for a pass. A forward pass without a backward pass, or one that failed, leaves units gathered, maybe with
// old values. Gradients that a backward pass has brought before an exception ended it must not get into the next
// average. Nor must gradients that passes before it have left in the shards, which have no .grad until then: nobody
// could have zeroed it.
void FsdpRoot::StartOver() {
  for (const auto& unit : units_) {
    UnitGradients& gradients = unit->gradients();
    gatherer_->Reshard(*unit);
    if (backward_->begun()) gradients.flat().Drop();
    gradients.Restore();
    if (backward_->concerns_others()) gradients.DropShards();
    gradients.Expect();
  }
  backward_->End();
  reductions_->Await();
  reductions_->Drop();
  order_->Close();
}

// Fails all ranks with `message` unless all of them call this. They then go on together.
void FsdpRoot::AgreeOrFail(const std::string& message) {
  std::vector<comm::Communicator*> groups = groups_->All();
  // Ranks that are through with this iteration wait in Join's group for the next one.
  if (calls_->group() != nullptr) groups.push_back(calls_->group());
  const absl::Status agreed = AgreeThatPassEnded(groups, calls_->all_have_inputs(), message);
  if (agreed.ok()) return;
  Fail(message);
  ThrowUnlessOk(agreed, message);
}

// Replicas that start from other values would be averaged for ever and never become equal. Parameters may have been
// loaded after they were wrapped, so that this is the first moment to see it. It is the first forward pass that all
// replicas make: one of them may have evaluated alone before.
void FsdpRoot::CompareReplicas() {
  if (std::exchange(compared_, true) || groups_->replicate() == nullptr || groups_->replicas() == 1) return;
  const auto starts_alone = [](const auto& unit) { return !unit->options().sync_module_states; };
  if (calls_->group() != nullptr || std::none_of(units_.begin(), units_.end(), starts_alone)) return;
  std::vector<at::Tensor> shards;
  for (const auto& unit : units_) {
    if (unit->weights().shard().defined()) shards.push_back(unit->weights().shard());
  }
  CheckSameValues(*groups_->replicate(), "FullyShardedDataParallel", shards,
                  "set sync_module_states, or give all replicas the same values before the first forward pass");
}

void FsdpRoot::BeginForward(bool training) {
  TORCH_CHECK(
      !backward_->goes_on_here(),
      "FullyShardedDataParallel: the whole model runs forward within a backward pass of its own, whose gradients "
      "would be lost. In a hook: run it after backward(). In a checkpointed function: checkpoint all its forward "
      "passes, or blocks within it");
  if (backward_->concerns_others()) AgreeOrFail(kGivenUp);
  if (std::exchange(awaits_backward_, false) && calls_->all_have_inputs()) AgreeOrFail(MissedBackward(*groups_));
  const bool averages = sync_ && training && at::GradMode::is_enabled();
  const int divisor = calls_->Begin(ranks_, averages);
  if (averages) CompareReplicas();
  tags_->BeginForward(averages);
  awaits_backward_ = averages && ranks_ > 1;
  StartOver();
  set_share(divisor);
  counts_runs_ = at::GradMode::is_enabled();
  for (const auto& unit : units_) unit->runs().Keep();
}

void FsdpRoot::PreForward(FsdpUnit& unit, bool training) {
  runtime::MutexLock lock(mutex_);
  RefuseWhileSummoned(summoned(), "forward");
  if (stage_->under_way()) return stage_->PreForward(unit);
  if (&unit == units_.front().get()) BeginForward(training);
  // A checkpoint that calls the unit again in backward makes no other run.
  if (counts_runs_ && !backward_->begun()) unit.runs().Begin(++time_);
  gatherer_->Start(unit);
  FsdpUnit* next = unit.options().forward_prefetch ? order_->NextForward(unit) : nullptr;
  if (next != nullptr) gatherer_->Start(*next);
  unit.weights().Finish();
  order_->Add(unit);
  if (at::GradMode::is_enabled()) unit.AddGradientHooks(shared_from_this());
}

void FsdpRoot::PostForward(FsdpUnit& unit, const std::vector<at::Tensor>& outputs) {
  runtime::MutexLock lock(mutex_);
  if (stage_->under_way()) return;
  const bool outermost = &unit == units_.front().get();
  // Peers read the shards of units that were gathered ahead and left out; those may be written next.
  for (const auto& each : units_) {
    if (outermost && each->gathering()) gatherer_->Reshard(*each);
  }
  if (counts_runs_ && !backward_->begun()) unit.runs().End(++time_);
  if (!at::GradMode::is_enabled()) return gatherer_->Reshard(unit);
  TORCH_CHECK(!outputs.empty() || !unit.gradients().trainable(),
              "FullyShardedDataParallel: the forward pass of the module with ", unit.parameters().front().name,
              " returned no tensor that can be found, so its backward pass can't be "
              "followed; return tensors, or give its type an overload of AppendTensors (trainer/base/tensors_of.h)");
  if (outermost && !MayGoBackward(outputs)) awaits_backward_ = false;
  if (unit.reshards_after_forward(outermost)) gatherer_->ReshardAfterForward(unit);
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    output.register_hook([weak = weak_from_this(), weak_unit = unit.weak_from_this()](const at::Tensor&) {
      const auto self = weak.lock();
      const auto live = weak_unit.lock();
      if (self != nullptr && live != nullptr) self->PreBackward(*live);
    });
  }
}

// Waits for what was gathered ahead, because peers read the shards that the caller may step next.
void FsdpRoot::AbandonForward(const FsdpUnit& unit) {
  runtime::MutexLock lock(mutex_);
  // The module around an inner unit may catch what was thrown, and go on.
  if (stage_->under_way() || &unit != units_.front().get() || backward_->begun()) return;
  for (const auto& each : units_) {
    try {
      gatherer_->Reshard(*each);
    } catch (const c10::Error&) {  // the group has failed: the next collective says so
    }
  }
  // No backward pass will come to these runs, but one may come to those of a forward pass before.
  for (const auto& each : units_) each->runs().Restore();
  awaits_backward_ = false;
  order_->Abandon();
}

// Called by each hook of a pass; the first one begins it.
void FsdpRoot::BeginBackward() {
  if (backward_->goes_on()) return;
  if (backward_->begun()) {  // an exception has ended that one, and no forward pass came between
    if (backward_->concerns_others()) AgreeOrFail(kGivenUp);
    StartOver();
  }
  awaits_backward_ = false;
  const auto state = ConcernsOthers(sync_, units_) ? BackwardCycle::State::kShared : BackwardCycle::State::kAlone;
  passing_.clear();
  for (const auto& unit : units_) unit->runs().TakeForBackward();
  reductions_->Plan(order_->ForReductions(units_));
  backward_->Begin(state, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      runtime::MutexLock lock(self->mutex_);
      self->Finish();
    }
  });
}

void FsdpRoot::PreBackward(FsdpUnit& unit) {
  runtime::MutexLock lock(mutex_);
  RefuseWhileSummoned(summoned(), "backward");
  try {
    BeginBackward();
    ReshardPassed(passing_, unit, *gatherer_);
    gatherer_->Start(unit);
    if (unit.options().backward_prefetch == BackwardPrefetch::kBackwardPre) {
      FsdpUnit* next = order_->NextBackward(unit);
      // A unit that backward has reached is done, or has its parameters.
      if (next != nullptr && !next->gradients().begun()) gatherer_->Start(*next);
    }
    unit.weights().Finish();
    unit.AddGradientHooks(shared_from_this());  // a checkpointed function builds its graph only now
    unit.gradients().Begin();
    if (unit.gradients().frozen_in_part()) passing_.push_back(&unit);
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpRoot::OnGradient(FsdpUnit& unit, int parameter) {
  runtime::MutexLock lock(mutex_);
  if (stage_->under_way()) return stage_->OnGradient(unit, parameter);
  if (!backward_->begun()) return;  // failed before
  try {
    unit.gradients().Take(parameter, share_);
    if (!unit.has_all_gradients()) return;
    if (!unit.gradients().frozen_in_part()) {
      if (unit.weights().borrowed()) {
        passing_.push_back(&unit);
      } else {
        gatherer_->Reshard(unit);
      }
    }
    if (sync_) reductions_->LaunchReady();
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpRoot::Finish() {
  if (!backward_->begun()) return;
  try {
    gatherer_->ReshardAll();
    if (sync_) reductions_->LaunchRest();
    if (sync_) calls_->Tell(JoinCalls::Step::kFinish, *units_.front());
    reductions_->Finish();
    for (const auto& unit : units_) {
      unit->gradients().Restore();
      unit->gradients().Expect();
    }
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
  backward_->End();
  order_->Close();
}

void FsdpRoot::set_share(int ranks) {
  const double share = 1.0 / ranks;
  // Gradients that no_sync has accumulated are part of the next average, and so of its share.
  for (const auto& unit : units_) {
    if (share != share_) unit->gradients().flat().Scale(share / share_);
  }
  share_ = share;
}

void FsdpRoot::set_join(Join* join, Joinable* joinable) {
  runtime::MutexLock lock(mutex_);
  calls_->Set(join, joinable);
}

void FsdpRoot::EndInputs() {
  runtime::MutexLock lock(mutex_);
  if (std::exchange(awaits_backward_, false) && calls_->all_have_inputs()) AgreeOrFail(MissedBackward(*groups_));
  if (!backward_->concerns_others()) return;
  AgreeOrFail(kGivenUp);
  StartOver();
}

std::string FsdpRoot::NameOf(int call) const { return calls_->NameOf(call); }

void FsdpRoot::Shadow(int call, int active) {
  runtime::MutexLock lock(mutex_);
  try {
    const auto [step, unit] = calls_->Read(call);
    switch (step) {
      case JoinCalls::Step::kForward:
      case JoinCalls::Step::kTrainingForward:
        tags_->BeginForward(/*averages=*/step == JoinCalls::Step::kTrainingForward);
        StartOver();
        set_share(calls_->DivisorOf(ranks_, active));
        drops_gradients_ = true;
        return;
      case JoinCalls::Step::kGather:
        gatherer_->Reshard(unit);  // forgets what an earlier forward left
        [[fallthrough]];
      case JoinCalls::Step::kGatherKept:
        gatherer_->Start(unit);
        gatherer_->ReshardAfterForward(unit);
        return;
      case JoinCalls::Step::kReduce:
        // Loops zero gradients before each backward pass that averages; nobody does here.
        if (std::exchange(drops_gradients_, false)) {
          for (const auto& each : units_) each->gradients().DropShards();
        }
        // Reduces what this rank's inputs have accumulated under no_sync, or nothing.
        reductions_->Launch(unit);
        return;
      case JoinCalls::Step::kFinish:
        reductions_->Finish();
        for (const auto& each : units_) {
          gatherer_->Reshard(*each);  // forgets what it kept among neighbours: the step makes that old
          each->gradients().Expect();
        }
        return;
    }
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpRoot::Abort(const std::string& why) {
  runtime::MutexLock lock(mutex_);
  Fail(why);
}

// Ends the pass here and on the other ranks, which wait for what this one won't send.
void FsdpRoot::Fail(const std::string& why) {
  backward_->End();
  groups_->Abort(why);
  reductions_->Await();
}

void FsdpRoot::ForgetOrder() {
  runtime::MutexLock lock(mutex_);
  order_->Forget();
  for (const auto& unit : units_) {
    gatherer_->Reshard(*unit);
    unit->runs().Forget();  // ranks that only answered have none
  }
}

void FsdpRoot::UnshardAll() {
  runtime::MutexLock lock(mutex_);
  TORCH_CHECK(calls_->all_have_inputs(),
              "FullyShardedDataParallel: SummonFullParams under Join, where a rank has no inputs (or none has begun an "
              "iteration): that rank has yet to do its step; do it after Join::run");
  for (const auto& unit : units_) {
    // Forgets what an earlier forward pass left or, where it ended in an exception, was gathering: shards may be newer.
    if (!unit->unsharded()) gatherer_->Reshard(*unit);
    gatherer_->Start(*unit);
  }
  for (const auto& unit : units_) unit->weights().Finish();
  ++summoned_;
}

void FsdpRoot::ReshardAll(bool writeback) {
  runtime::MutexLock lock(mutex_);
  --summoned_;
  for (const auto& unit : units_) {
    if (writeback) unit->weights().WriteBack();
    gatherer_->Reshard(*unit);
  }
}

void FsdpRoot::Reshard() {
  runtime::MutexLock lock(mutex_);
  TORCH_CHECK(
      summoned_ == 0,
      "FullyShardedDataParallel: shards are asked for under SummonFullParams, where parameters are whole and may "
      "have changed; save, load and initialise after it");
  gatherer_->ReshardAll();
}

}  // namespace cohort::trainer
