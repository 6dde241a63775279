// JoinCalls: what FullyShardedDataParallel tells ranks without inputs under Join.
//
// Once a rank has no inputs, the others tell it of each collective before they call it. It can't know which they call,
// because forward passes may differ, evaluate, or have no backward pass.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"
#include "cohort/trainer/transfer/join.h"

namespace cohort::trainer {

class JoinCalls {
 public:
  // The two forward passes and the last one concern the model; the others concern a unit.
  enum class Step { kForward, kTrainingForward, kGather, kGatherKept, kReduce, kFinish };
  struct Call {
    Step step;
    FsdpUnit& unit;
  };

  explicit JoinCalls(const std::vector<std::shared_ptr<FsdpUnit>>& units) : units_(units) {}

  // Calls are those of `joinable` from now on; null: there is no Join.
  void Set(Join* join, Joinable* joinable);
  bool all_have_inputs() const { return join_ == nullptr || join_->all_have_inputs(); }
  // Null without a Join. All ranks wait in it before each iteration.
  comm::Communicator* group() const { return join_ == nullptr ? nullptr : &join_->group(); }

  // A forward pass begins, whose gradients are averaged if it `averages`. Returns what averages are divided by, `ranks`
  // without a Join. Collective under one.
  int Begin(int ranks, bool averages);
  // The same on a rank without inputs; `active` have inputs.
  int DivisorOf(int ranks, int active) const;
  void Tell(Step step, const FsdpUnit& unit) const;
  Call Read(int call) const;
  std::string NameOf(int call) const;

 private:
  const std::vector<std::shared_ptr<FsdpUnit>>& units_;
  Join* join_ = nullptr;
  Joinable* joinable_ = nullptr;
};

}  // namespace cohort::trainer
