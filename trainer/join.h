// Join: training when ranks have different numbers of inputs, after torch.distributed.algorithms.Join.
//
//   Join join({&ddp, &zero});
//   join.run([&] {
//     for (const auto& batch : my_batches) { ... ddp.forward(batch) ... zero.step(); }
//   });
//
// A rank whose loop has ended answers the collectives of those that still have inputs ("shadows" them) until nobody has
// any. Every iteration costs one all-gather of four bytes a rank more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

class Join;

// Which ranks have an input in one iteration, and what each does in it. The same on all ranks.
class JoinIteration {
 public:
  JoinIteration() = default;
  // By rank: -1 for a rank without inputs, else its flags.
  explicit JoinIteration(std::vector<int32_t> flags) : flags_(std::move(flags)) {}
  int active_count() const;
  int lowest_active() const;  // 0 when there is none
  int flags(int rank) const { return flags_[rank]; }

 private:
  std::vector<int32_t> flags_;
};

// What takes part in a Join: calls Join::Notify once an iteration if it is the first of the list.
class Joinable {
 public:
  Joinable() = default;
  virtual ~Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;

  virtual comm::Communicator& join_group() = 0;
  // The collectives of an iteration of the others, on a rank without inputs.
  virtual void ShadowIteration(const JoinIteration& iteration) = 0;
  // After the last of them, on every rank; `last` had the ranks that had inputs longest.
  virtual void AfterJoin(const JoinIteration& last) = 0;

 protected:
  // The Join that wants to be notified, or null.
  Join* join() const { return join_; }

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
  // Local. `joinables` must outlive this and have equal groups.
  explicit Join(std::vector<Joinable*> joinables, JoinOptions options = {});

  // Calls `inputs`, this rank's loop over its inputs, then shadows the others. Collective; blocks until all are done.
  // Throws what `inputs` throws, after telling the others.
  void run(const std::function<void()>& inputs);

  // By the first joinable, once for each input. `flags` are not negative.
  JoinIteration Notify(int flags);
  const JoinOptions& options() const { return options_; }

 private:
  JoinIteration Exchange(int flags);
  void CheckTermination(const JoinIteration& iteration);
  void Leave(const std::string& why);
  void RunAndShadow(const std::function<void()>& inputs);

  std::vector<Joinable*> joinables_;
  JoinOptions options_;
  std::unique_ptr<comm::Communicator> group_;
  JoinIteration last_;
  bool all_know_ = false;  // that it has ended early
};

// Steps an optimizer of this rank's own parts in shadowed iterations too: for sharded parameters, whose owner updates
// them whether it has inputs or not. Comes after what gives it gradients in the list.
class JoinableOptimizer : public Joinable {
 public:
  JoinableOptimizer(torch::optim::Optimizer& optimizer, comm::Communicator& group)
      : optimizer_(optimizer), group_(group) {}
  comm::Communicator& join_group() override { return group_; }
  void ShadowIteration(const JoinIteration&) override { optimizer_.step(); }
  void AfterJoin(const JoinIteration&) override {}

 private:
  torch::optim::Optimizer& optimizer_;
  comm::Communicator& group_;
};

}  // namespace cohort::trainer
