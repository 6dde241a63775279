#include "cohort/trainer/parallel/fsdp/join_calls.h"

namespace cohort::trainer {
namespace {

constexpr int kSteps = 6;

}  // namespace

void JoinCalls::Set(Join* join, Joinable* joinable) {
  join_ = join;
  joinable_ = joinable;
}

int JoinCalls::Begin(int ranks, bool averages) {
  if (join_ == nullptr) return ranks;
  const Step step = averages ? Step::kTrainingForward : Step::kForward;
  const JoinIteration iteration = join_->Begin(*joinable_, static_cast<int>(step));
  return DivisorOf(ranks, iteration.active_count());
}

int JoinCalls::DivisorOf(int ranks, int active) const {
  return join_->options().divide_by_initial_world_size ? ranks : active;
}

void JoinCalls::Tell(Step step, const FsdpUnit& unit) const {
  if (all_have_inputs()) return;
  const int call = unit.number() * kSteps + static_cast<int>(step);
  join_->Tell(*joinable_, call, /*averages=*/step == Step::kFinish);
}

JoinCalls::Call JoinCalls::Read(int call) const {
  return {static_cast<Step>(call % kSteps), *units_.at(call / kSteps)};
}

std::string JoinCalls::NameOf(int call) const {
  static constexpr const char* kNames[kSteps] = {"forward pass", "forward pass with averaged gradients",
                                                 "gathering",    "gathering among neighbours",
                                                 "reduction",    "end of the backward pass"};
  const auto step = static_cast<Step>(call % kSteps);
  std::string name = "FullyShardedDataParallel's " + std::string(kNames[call % kSteps]);
  if (step == Step::kForward || step == Step::kTrainingForward || step == Step::kFinish) return name;
  const FsdpUnit& unit = *units_.at(call / kSteps);
  return name + " of the unit with " + (unit.parameters().empty() ? "nothing" : unit.parameters().front().name);
}

}  // namespace cohort::trainer
