// GradientOrder: the order in which gradients come in the first backward pass, by which buckets are rebuilt once.
#pragma once

#include <cstddef>
#include <vector>

#include "cohort/comm/communicator.h"

namespace cohort::trainer {

class GradientOrder {
 public:
  explicit GradientOrder(size_t parameters) : parameters_(parameters) {}

  // A backward pass that averages begins: one of this rank's own, or of others, which this rank shadows.
  void BeginOwn();
  void BeginShadow();
  void EndShadow();
  // The first gradient of `parameter` has come in this pass.
  void Saw(int parameter);

  // An order has been seen and not been used yet. The same on all ranks, those that shadowed it too.
  bool known() const;
  // Takes the order that rank `root` has seen in a pass of its own. Collective, once; blocks. Throws DistributedError.
  std::vector<int> Agree(comm::Communicator& group, int root);
  // Agree has been called.
  bool agreed() const { return state_ == State::kAgreed; }

 private:
  // Legal transitions:
  //   BeginOwn   kOthers -> kOwn
  //   EndShadow  kOwn -> kOthers
  //   Agree      kOwn, kOthers -> kAgreed, which stays
  enum class State {
    kOwn,     // the last pass was this rank's: the order is complete when all parameters are in it
    kOthers,  // the last pass was that of others, which have seen an order
    kAgreed,  // all ranks use one order, and no other is looked for
  };
  void Become(State next);

  const size_t parameters_;
  State state_ = State::kOwn;
  std::vector<int> seen_;
};

}  // namespace cohort::trainer
