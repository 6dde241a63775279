// Join: training when ranks have different numbers of inputs, after torch.distributed.algorithms.Join.
//
//   Join join({&ddp, &zero});
//   join.run([&] {
//     for (const auto& batch : my_batches) { ... ddp.forward(batch) ... zero.step(); }
//   });
//
// A rank whose loop has ended answers the collectives of the others ("shadows" them) until no rank has inputs. It
// guesses nothing: ranks with inputs tell it of each collective.
//
//   with inputs      Begin ─ collectives ... Tell ─ collectives ... Tell ─ collectives ... Begin ─ ...
//   without inputs   all-gather ─ the same   all-gather ─ the same  ...
//
// Begin is one all-gather of four bytes a rank. It comes with each forward pass that has collectives, or, for
// DistributedDataParallel, whose backward pass will have them. Tell costs the same, and nothing while all ranks have
// inputs.
//
// Ranks with inputs must do the same in the same order. Otherwise all ranks throw. Only the joinables' collectives are
// answered: forward passes, backward passes, their clip_grad_norm_ and ZeroRedundancyOptimizer's step. A GradScaler
// over groups and SummonFullParams are refused by name.
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

// Says which ranks had an input when one of them called, and their calls. It is the same on all ranks.
class JoinIteration {
 public:
  JoinIteration() = default;
  // By rank: -1 for a rank without inputs, otherwise its call as Join writes it.
  explicit JoinIteration(std::vector<int32_t> calls) : calls_(std::move(calls)) {}
  int size() const { return static_cast<int>(calls_.size()); }
  int active_count() const;
  int lowest_active() const;  // 0 when there is none
  int32_t call(int rank) const { return calls_[rank]; }

 private:
  std::vector<int32_t> calls_;
};

// A participant in a Join. Its calls are numbers of its own, below kMostCalls.
class Joinable {
 public:
  static constexpr int kMostCalls = 1 << 22;

  Joinable() = default;
  virtual ~Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;

  virtual comm::Communicator& join_group() = 0;
  // Runs the collectives of a call of the others, on a rank without inputs.
  virtual void Shadow(int call, const JoinIteration& iteration) = 0;
  // Called on each rank when its inputs are over, before it answers others. It throws if the last backward pass ended
  // in an exception that the loop has caught. Others may wait for data that it has not sent; they then fail too.
  virtual void AfterInputs() {}
  // Called on a rank without inputs, after an iteration that averaged gradients. It does the others' work that has no
  // collectives.
  virtual void AfterIteration() {}
  // Called at the end, on every rank. `last` has the ranks that had inputs longest.
  virtual void AfterJoin(const JoinIteration& last) = 0;
  // Whether its calls begin iterations.
  virtual bool begins_iterations() const { return true; }
  // The name of a call, for people.
  virtual std::string NameOf(int call) const = 0;
  // This rank's loop has failed: fails the groups of the joinable's collectives, because others wait there for this
  // rank. It must not fail join_group().
  virtual void AbortGroups(const std::string& /*why*/) {}

 protected:
  // The current Join, or null.
  Join* join() const { return join_; }
  // Called when join() has changed.
  virtual void OnJoin() {}

 private:
  friend class Join;
  Join* join_ = nullptr;
};

struct JoinOptions {
  bool enable = true;
  // The first rank to run out of inputs ends it for all, with DistributedError kFailedPrecondition on each.
  bool throw_on_early_termination = false;
  // Averages are sums divided by the number of all ranks. If false, by the number of ranks that still have inputs.
  bool divide_by_initial_world_size = true;
};

class Join {
 public:
  // Local. `joinables` must outlive this and have equal groups. Throws c10::Error when none begins iterations.
  explicit Join(std::vector<Joinable*> joinables, JoinOptions options = {});

  // Calls `inputs`, this rank's loop over its inputs, then shadows the others. Collective; blocks until all are done.
  // Throws the exception of `inputs` after telling the others, wherever they wait: in calls of Join or of the
  // joinables. These must then be made again. The groups that were passed to them remain usable.
  void run(const std::function<void()>& inputs);
  // Returns the Join that this thread runs, or null.
  static Join* Running();

  // For joinables: call one before each set of collectives that ranks without inputs have to answer. Both throw
  // DistributedError kFailedPrecondition on all ranks if those with inputs call different things. `averages`: gradients
  // are averaged when the call is done.
  //
  // Begins an iteration.
  JoinIteration Begin(const Joinable& who, int call, bool averages = false);
  // Continues it. Does nothing while all ranks have inputs, and on a rank without.
  void Tell(const Joinable& who, int call, bool averages = false);
  // As above, with values that ranks without inputs need. Ranks with inputs have equal values. The others get them by
  // Share.
  void Tell(const Joinable& who, int call, std::span<const double> values);
  // While a call is shadowed: returns the values that came with it.
  void Share(std::span<double> values);
  // Whether all ranks had inputs when the current iteration began. False before the first.
  bool all_have_inputs() const { return begun_ && last_.active_count() == last_.size(); }
  const JoinOptions& options() const { return options_; }
  // The group over which ranks learn of each other's calls. All of them wait there before each iteration.
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
  bool averaged_ = false;  // gradients were averaged in the iteration that is shadowed
  bool all_know_ = false;  // all ranks know that it has ended early
};

// Steps an optimizer of this rank's own parts in shadowed iterations too. This serves sharded parameters, whose owner
// updates them whether it has inputs or not. It steps once for each backward pass that averages: the ones in between
// are under no_sync.
//
// A schedule of learning rates runs in the user's loop, which is over on such a rank. The other ranks report nothing of
// theirs. `after_step` is called after each step in their iterations, to continue the schedule. Without it the rate
// stays that of the loop's end, which is wrong if others continue their schedule.
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
