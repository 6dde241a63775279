// Join: training when ranks have different numbers of inputs, after torch.distributed.algorithms.Join.
//
//   Join join({&ddp, &zero});
//   join.run([&] {
//     for (const auto& batch : my_batches) { ... ddp.forward(batch) ... zero.step(); }
//   });
//
// A rank whose loop has ended answers the collectives of those that still have inputs ("shadows" them) until nobody has
// any. It guesses nothing: those with inputs tell it of each.
//
//   with inputs      Begin ─ collectives ... Tell ─ collectives ... Tell ─ collectives ... Begin ─ ...
//   without inputs   all-gather ─ the same   all-gather ─ the same  ...
//
// Begin is one all-gather of four bytes a rank for each forward pass that has collectives (or, of
// DistributedDataParallel, whose backward pass will have). Tell costs the same, and nothing while all ranks have
// inputs.
//
// Ranks with inputs must do the same in the same order; where they don't, all ranks throw. Of collectives only those of
// the joinables are answered: forward passes, backward passes, their clip_grad_norm_ and ZeroRedundancyOptimizer's
// step. A GradScaler over groups and SummonFullParams are refused by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

class Join;

// Which ranks had an input when one of them called, and what they called. The same on all ranks.
class JoinIteration {
 public:
  JoinIteration() = default;
  // By rank: -1 for a rank without inputs, else its call as Join writes it.
  explicit JoinIteration(std::vector<int32_t> calls) : calls_(std::move(calls)) {}
  int size() const { return static_cast<int>(calls_.size()); }
  int active_count() const;
  int lowest_active() const;  // 0 when there is none
  int32_t call(int rank) const { return calls_[rank]; }

 private:
  std::vector<int32_t> calls_;
};

// What takes part in a Join. Calls are numbers of its own, below kMostCalls.
class Joinable {
 public:
  static constexpr int kMostCalls = 1 << 22;

  Joinable() = default;
  virtual ~Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;

  virtual comm::Communicator& join_group() = 0;
  // The collectives of a call of the others, on a rank without inputs.
  virtual void Shadow(int call, const JoinIteration& iteration) = 0;
  // On each rank when its inputs are over, before it answers others. Throws where the last backward pass here has ended
  // in an exception that the loop has caught, and others may wait for what it has not sent: they hear of it.
  virtual void AfterInputs() {}
  // On a rank without inputs, after an iteration in which gradients were averaged: what others do without collectives.
  virtual void AfterIteration() {}
  // At the end, on every rank; `last` had the ranks that had inputs longest.
  virtual void AfterJoin(const JoinIteration& last) = 0;
  // Whether its calls begin iterations.
  virtual bool begins_iterations() const { return true; }
  // For people.
  virtual std::string NameOf(int call) const = 0;
  // This rank's loop has failed: fails what the joinable's collectives run over, for others wait there for this rank.
  // Groups of its own, not join_group().
  virtual void AbortGroups(const std::string& /*why*/) {}

 protected:
  // The Join under way, or null.
  Join* join() const { return join_; }
  // It has changed.
  virtual void OnJoin() {}

 private:
  friend class Join;
  Join* join_ = nullptr;
};

struct JoinOptions {
  bool enable = true;
  // The first rank to run out of inputs ends it for all, with DistributedError kFailedPrecondition on each.
  bool throw_on_early_termination = false;
  // Averages are sums divided by the number of all ranks, or of those that still have inputs.
  bool divide_by_initial_world_size = true;
};

class Join {
 public:
  // Local. `joinables` must outlive this and have equal groups. Throws c10::Error when none begins iterations.
  explicit Join(std::vector<Joinable*> joinables, JoinOptions options = {});

  // Calls `inputs`, this rank's loop over its inputs, then shadows the others. Collective; blocks until all are done.
  // Throws what `inputs` throws, after telling the others, wherever they wait: in calls of Join or of the joinables,
  // which must be made anew then. The groups that those were given go on.
  void run(const std::function<void()>& inputs);
  // The one that this thread runs, or null.
  static Join* Running();

  // For joinables, each before collectives that ranks without inputs have to answer; both throw DistributedError
  // kFailedPrecondition on all ranks where those with inputs call different things. `averages`: gradients are averaged
  // when the call is done.
  //
  // An iteration begins.
  JoinIteration Begin(const Joinable& who, int call, bool averages = false);
  // It goes on. Does nothing while all ranks have inputs, and on a rank without.
  void Tell(const Joinable& who, int call, bool averages = false);
  // The same with what ranks without inputs need to know and those with inputs have alike; they get it by Share.
  void Tell(const Joinable& who, int call, std::span<const double> values);
  // While a call is shadowed: the values that came with it.
  void Share(std::span<double> values);
  // When the iteration under way began. False before the first.
  bool all_have_inputs() const { return begun_ && last_.active_count() == last_.size(); }
  const JoinOptions& options() const { return options_; }
  // What ranks learn of each other's calls by; all of them wait there before each iteration.
  comm::Communicator& group() const { return *group_; }

 private:
  struct Call;
  int32_t Write(const Call& call) const;
  Call Read(int32_t word) const;
  JoinIteration Exchange(int32_t word);
  void CheckAlike(const JoinIteration& iteration);
  void CheckTermination(const JoinIteration& iteration);
  void ShadowCall(const JoinIteration& iteration);
  void EndIteration();
  void Leave(const std::string& why);
  void RunAndShadow(const std::function<void()>& inputs);
  void Attach(Join* join);

  std::vector<Joinable*> joinables_;
  JoinOptions options_;
  std::unique_ptr<comm::Communicator> group_;
  JoinIteration last_;
  bool begun_ = false;
  bool shadowing_ = false;
  bool averaged_ = false;  // gradients, in the iteration that is shadowed
  bool all_know_ = false;  // that it has ended early
};

// Steps an optimizer of this rank's own parts in shadowed iterations too: for sharded parameters, whose owner updates
// them whether it has inputs or not. One step for each backward pass that averages: those in between are under no_sync.
//
// A schedule of learning rates runs in the user's loop, which is over on such a rank, and here the others tell it
// nothing of theirs: `after_step` is called after each step that it does in their iterations, to go on with the
// schedule. Without it the rate stays that of the loop's end, which is wrong where others go on with their schedule.
class JoinableOptimizer : public Joinable {
 public:
  JoinableOptimizer(torch::optim::Optimizer& optimizer, comm::Communicator& group,
                    std::function<void()> after_step = nullptr)
      : optimizer_(optimizer), group_(group), after_step_(std::move(after_step)) {}
  comm::Communicator& join_group() override { return group_; }
  void Shadow(int /*call*/, const JoinIteration& /*iteration*/) override {}
  void AfterIteration() override {
    optimizer_.step();
    if (after_step_ != nullptr) after_step_();
  }
  void AfterJoin(const JoinIteration& /*last*/) override {}
  bool begins_iterations() const override { return false; }
  std::string NameOf(int /*call*/) const override { return "an optimizer's step"; }

 private:
  torch::optim::Optimizer& optimizer_;
  comm::Communicator& group_;
  std::function<void()> after_step_;
};

}  // namespace cohort::trainer
