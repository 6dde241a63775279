// What FsdpRoot tells ranks without inputs, and what these do then.
#include <algorithm>
#include <string>
#include <utility>

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/parallel/fsdp/fsdp_root.h"
#include "torch/torch.h"

namespace cohort::trainer {

void FsdpRoot::set_join(Join* join, Joinable* joinable) {
  runtime::MutexLock lock(mutex_);
  join_ = join;
  joinable_ = joinable;
}

void FsdpRoot::EndInputs() {
  runtime::MutexLock lock(mutex_);
  if (!backward_ || !concerns_others_) return;
  AgreeOnGivingUp();
  StartOver();
}

void FsdpRoot::Tell(Step step, const FsdpUnit& unit) {
  if (join_ == nullptr || join_->all_have_inputs()) return;
  const auto place = std::find_if(units_.begin(), units_.end(), [&](const auto& each) { return each.get() == &unit; });
  const int call = static_cast<int>(place - units_.begin()) * kSteps + static_cast<int>(step);
  join_->Tell(*joinable_, call, /*averages=*/step == Step::kFinish);
}

std::string FsdpRoot::NameOf(int call) const {
  static constexpr const char* kNames[kSteps] = {"forward pass", "gathering", "gathering among neighbours", "reduction",
                                                 "end of the backward pass"};
  const auto step = static_cast<Step>(call % kSteps);
  std::string name = "FullyShardedDataParallel's " + std::string(kNames[call % kSteps]);
  if (step == Step::kForward || step == Step::kFinish) return name;
  const FsdpUnit& unit = *units_.at(call / kSteps);
  return name + " of the unit with " + (unit.parameters().empty() ? "nothing" : unit.parameters().front().name);
}

void FsdpRoot::Shadow(int call, int active) {
  runtime::MutexLock lock(mutex_);
  try {
    ShadowStep(static_cast<Step>(call % kSteps), *units_.at(call / kSteps), active);
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpRoot::ShadowStep(Step step, FsdpUnit& unit, int active) {
  switch (step) {
    case Step::kForward:
      StartOver();
      set_share(join_->options().divide_by_initial_world_size ? ranks_ : active);
      drops_gradients_ = true;
      return;
    case Step::kGather:
      unit.Reshard(pool_);  // forgets what an earlier forward left
      [[fallthrough]];
    case Step::kGatherKept:
      StartUnshard(unit);
      unit.ReshardAfterForward(pool_);
      return;
    case Step::kReduce:
      // Loops zero gradients before each backward pass that averages; nobody does here.
      if (std::exchange(drops_gradients_, false)) {
        for (const auto& each : units_) each->DropShardGradients();
      }
      // What this rank's inputs have accumulated under no_sync, or nothing.
      LaunchReduction(unit, unit.ReleaseFlatGradient());
      return;
    case Step::kFinish:
      FinishReductions();
      for (const auto& each : units_) {
        each->Reshard(pool_);  // forgets what it kept among neighbours: the step makes that old
        each->ExpectAllGradients();
      }
      return;
  }
}

}  // namespace cohort::trainer
