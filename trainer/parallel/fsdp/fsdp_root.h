// FsdpRoot: what the FullyShardedDataParallel units of a model share. It decides when each unit is gathered, resharded
// and reduced, and what a pass that an exception has ended leaves behind.
//
//   forward   unit 0 ── unit 1 ── unit 2        gather 0, (1 ahead) compute 0, free 0, (2 ahead) compute 1, ...
//   backward  unit 2 ── unit 1 ── unit 0        gather 2, (1 ahead) gradients of 2, reduce-scatter 2, free 2, ...
//   end of backward                             all-reduce over the replicas (HSDP), shards get their .grad
//
//   passes  pass_course.h  the forward or backward pass under way, or ended by an exception (`State`)
//   stage   fsdp_stage.h   what a pipeline asks for instead of hooks
//   parts   fsdp_parts.h   what all three work with:
//     groups      fsdp_groups.h          communicators
//     calls       join_calls.h           what ranks without inputs are told
//     order       unit_order.h           the order of units in forward, gathering ahead and reductions
//     tags        unit_order.h           what collectives carry: the unit and the iteration
//     gatherer    unit_gatherer.h        whole parameters, windows, memory
//     reductions  gradient_reductions.h  flat gradients under way
//
// A unit that runs several times before the backward pass (one layer used twice, or two forward passes of one loss)
// stays gathered and is reduced once, at the end.
//
// A unit whose parameters all get gradients is freed when it has them. Others may be needed after the last gradient.
// They are freed when backward comes to a unit that ran before them. So is a unit if the graph still has views of its
// memory: what was computed with `weight.detach()` runs backward without bringing a gradient.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/parallel/fsdp/fsdp_groups.h"
#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"
#include "cohort/trainer/transfer/join.h"

namespace cohort::trainer {

struct FsdpParts;
class FsdpStage;
class PassCourse;

class FsdpRoot : public std::enable_shared_from_this<FsdpRoot> {
 public:
  // `shard` carries the shards and `replicate`, if not null, joins equal shards. `world` has the ranks of both, row by
  // row of shards. All must outlive this. The first unit is the root's own. Local. Throws DistributedError.
  FsdpRoot(std::vector<std::shared_ptr<FsdpUnit>> units, comm::Communicator& world, comm::Communicator& shard,
           comm::Communicator* replicate);
  ~FsdpRoot();

  // Functions that change units hold the root's lock, because autograd calls hooks on threads of its own.
  //
  // Gives the unit its whole parameters, on the thread that computes the forward pass. `training` says whether the
  // outermost module is in training mode; only then are gradients averaged. Collective over the shards, in
  // the same order on all ranks; blocks. Throws c10::Error under SummonFullParams, as PreBackward does, and within a
  // backward pass of the whole model. Throws DistributedError, also where an exception has ended the last backward pass
  // on some ranks only; PreBackward agrees on that as well. Throws DistributedError too where this rank has run forward
  // and other ranks, but not this one, run backward.
  void PreForward(FsdpUnit& unit, bool training);
  // Outputs that require grad bring the unit's parameters back in backward. The outermost unit blocks until gatherings
  // that nobody used are over. Throws DistributedError, and c10::Error for a trainable unit without outputs.
  void PostForward(FsdpUnit& unit, const std::vector<at::Tensor>& outputs);
  // Called instead of PostForward when the module's forward pass has thrown. All units have their shards after that of
  // the outermost one.
  void AbandonForward(const FsdpUnit& unit);
  // Autograd calls these on the thread of the device. They may gather and reduce, in an order that forward has fixed,
  // and so block. Their exceptions leave backward(), after the root's communicators are aborted for all ranks.
  void PreBackward(FsdpUnit& unit);
  void OnGradient(FsdpUnit& unit, int parameter);

  // Ranks without inputs are told of all collectives from now on, as calls of `joinable`; null: there is no Join.
  void set_join(Join* join, Joinable* joinable);
  // This rank's inputs are over. Collective where the last backward pass has ended in an exception. Blocks then, and
  // throws DistributedError where it has on some ranks only.
  void EndInputs();
  // Answers a call of others on a rank without inputs; `active` ranks have inputs.
  void Shadow(int call, int active);
  std::string NameOf(int call) const;
  // Fails the root's communicators here and on the other ranks.
  void Abort(const std::string& why);
  // The next forward pass gathers nothing ahead, and finds nothing gathered. On all ranks.
  void ForgetOrder();
  // For a pipeline. It lives as long as this.
  FsdpStage& stage();
  bool sync() const;
  void set_sync(bool sync);

  // Gathers all units, and back. Collective; block. Throw c10::Error under a Join that a rank has no inputs for.
  void UnshardAll();
  void ReshardAll(bool writeback);
  // UnshardAll came without its ReshardAll.
  bool summoned() const { return summoned_ > 0; }
  // Gives modules their shards where a forward pass without a backward pass has left them whole parameters. Called
  // before shards are read or written. All ranks call it alike, or the next gathering is another call on each. Waits
  // for what is under way. Throws c10::Error while summoned, when changes would be lost.
  void Reshard();

  const std::vector<std::shared_ptr<FsdpUnit>>& units() const;
  // The ranks of the shards, for norms of gradients after a backward pass. It is the root's own, which Abort fails.
  comm::Communicator& norm_group() const;
  comm::Communicator* replicate_group() const { return replicate_; }
  const FsdpTraffic& traffic() const;

 private:
  comm::Communicator* replicate_;
  int summoned_ = 0;                // calls of UnshardAll without their ReshardAll
  int64_t time_ = 0;                // of the units' runs
  std::vector<FsdpUnit*> passing_;  // gathered in this backward pass, which may need them after the last gradient
  const std::unique_ptr<FsdpParts> parts_;
  const std::unique_ptr<PassCourse> passes_;
  const std::unique_ptr<FsdpStage> stage_;
};

}  // namespace cohort::trainer
