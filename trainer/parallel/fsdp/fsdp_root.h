// FsdpRoot: what the FullyShardedDataParallel units of a model share: communicators, the order in which they run, what
// is gathered ahead, and the end of the backward pass.
//
//   forward   unit 0 ── unit 1 ── unit 2        gather 0, (1 ahead) compute 0, free 0, (2 ahead) compute 1, ...
//   backward  unit 2 ── unit 1 ── unit 0        gather 2, (1 ahead) gradients of 2, reduce-scatter 2, free 2, ...
//   end of backward                             all-reduce over the replicas (HSDP), shards get their .grad
//
// With reshard_after_forward = n backward gathers among n neighbours: a communicator for each n.
//
// Gathering and reducing have communicators of their own, so that neither waits behind the other. Units are reduced in
// the opposite order of their forward passes, also when a later one has its gradients first: so the order of calls is
// the same on all ranks, whatever their graphs look like. A unit that runs several times before the backward pass (one
// layer used twice, or two forward passes of one loss) stays gathered and is reduced, once, at the end.
//
// A unit whose parameters all get gradients is freed when it has them; others, which backward may need after the last
// gradient, when it comes to a unit that ran before. So is a unit of whose memory the graph still has views then: what
// was computed with `weight.detach()` runs backward without bringing a gradient.
//
// Under Join, as soon as a rank has no inputs, the others tell it of each collective before they call it: it can't know
// which they call, because forward passes may differ, evaluate, or have no backward pass.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/autograd/backward_pass.h"
#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"
#include "cohort/trainer/transfer/join.h"
#include "cohort/trainer/transfer/storage_pool.h"

namespace cohort::trainer {

// Bytes and calls since the root was made, of this rank: what collectives were given to move, not what they sent.
struct FsdpTraffic {
  int64_t gathers = 0;
  int64_t gathered_bytes = 0;  // of the whole gathered vectors, padding included
  int64_t reductions = 0;
  int64_t reduced_bytes = 0;     // of whole flat gradients
  int64_t replicated_bytes = 0;  // of shards that were all-reduced over the replicas
};

class FsdpRoot : public std::enable_shared_from_this<FsdpRoot> {
 public:
  // `shard` carries the shards and `replicate`, if not null, joins equal shards; `world` has the ranks of both, row by
  // row of shards. All must outlive this. The first unit is the root's own. Local. Throws DistributedError.
  FsdpRoot(std::vector<std::shared_ptr<FsdpUnit>> units, comm::Communicator& world, comm::Communicator& shard,
           comm::Communicator* replicate);
  ~FsdpRoot();

  // On the thread that computes the forward pass. Gives the unit its whole parameters: collective over the shards, in
  // the same order on all ranks; blocks. Like all functions here that change units it holds the root's lock, because
  // autograd calls the hooks on threads of its own. Throws c10::Error under SummonFullParams, as does PreBackward, and
  // within a backward pass of the whole model; DistributedError, also where the last backward pass has ended in an
  // exception on some ranks only, which PreBackward agrees on as well.
  void PreForward(FsdpUnit& unit);
  // Outputs that require grad bring the unit's parameters back in backward. Blocks until gatherings that the outermost
  // unit finds unused are over. Throws DistributedError, and c10::Error for a trainable unit without outputs.
  void PostForward(FsdpUnit& unit, const std::vector<at::Tensor>& outputs);
  // Instead of PostForward when the module's forward pass has thrown: after the outermost unit's all have their shards.
  void AbandonForward(const FsdpUnit& unit);
  // From autograd, on the thread of the device: they may gather and reduce, in an order that forward has fixed, and so
  // block. What they throw leaves backward(), after the root's communicators are aborted for all ranks.
  void PreBackward(FsdpUnit& unit);
  void OnGradient(FsdpUnit& unit, int parameter);

  // Ranks without inputs hear of all collectives from now on, as calls of `joinable`; null: there is no Join.
  void set_join(Join* join, Joinable* joinable);
  // This rank's inputs are over. Collective where the last backward pass has ended in an exception; blocks then, and
  // throws DistributedError where it has on some ranks only.
  void EndInputs();
  // On a rank without inputs: what others called, of whom `active` have inputs.
  void Shadow(int call, int active);
  std::string NameOf(int call) const;
  // Fails its communicators here and on the other ranks.
  void Abort(const std::string& why);
  // The next forward pass gathers nothing ahead, and finds nothing gathered. On all ranks.
  void ForgetOrder();
  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }

  // Gathers all units, and back. Collective; block. Throw c10::Error under a Join that a rank has no inputs for.
  void UnshardAll();
  void ReshardAll(bool writeback);
  // Between the two.
  bool summoned() const { return summoned_ > 0; }
  // Gives modules their shards where a forward pass that no backward pass followed has left them whole parameters: for
  // who reads or writes shards. On all ranks alike, or the next gathering is another call on each; waits for what is
  // under way. Throws c10::Error between UnshardAll and ReshardAll, whose changes would be lost.
  void Reshard();

  const std::vector<std::shared_ptr<FsdpUnit>>& units() const { return units_; }
  // The ranks of the shards, for norms of gradients after a backward pass: the root's own, which Abort fails.
  comm::Communicator& norm_group() const { return *reduce_group_; }
  comm::Communicator* replicate_group() const { return replicate_; }
  const FsdpTraffic& traffic() const { return traffic_; }

 private:
  struct Reduction {
    FsdpUnit* unit = nullptr;
    at::Tensor flat;     // in, until it has been reduce-scattered
    at::Tensor reduced;  // out
    at::Tensor piece;    // of it, that this rank sums where all ranks do
    runtime::Work work;
    bool scattering = false;
  };
  // What ranks without inputs hear of: of a unit, but for the first and the last.
  enum class Step { kForward, kGather, kGatherKept, kReduce, kFinish };
  static constexpr int kSteps = 5;

  void MakeNeighbours();
  std::vector<comm::Communicator*> OwnGroups() const;
  bool outermost(const FsdpUnit& unit) const { return &unit == units_.front().get(); }
  void StartUnshard(FsdpUnit& unit);
  void CheckSameUnits();
  void EnterWindows();
  void PrefetchForward(const FsdpUnit& unit);
  void DropPrefetched();
  void PrefetchBackward(const FsdpUnit& unit);
  void ReshardPassed(const FsdpUnit& next);
  void QueueFinish();
  void PlanReductions();
  void Finish();
  void LaunchReadyReductions();
  void LaunchReduction(FsdpUnit& unit, at::Tensor flat);
  void StartScatter(Reduction& reduction, at::Tensor flat);
  int64_t PieceBegin(int64_t shard_numel, int replica) const;
  void Replicate(Reduction& reduction);
  void FinishReductions();
  void Fail(const std::string& why);
  void AbortGroups(const std::string& why);
  void AwaitReductions();
  void StartOver();
  void AgreeOnGivingUp();
  bool ConcernsOthers() const;
  void RefuseWhileSummoned(const char* pass) const;
  void BeginForward();
  void Tell(Step step, const FsdpUnit& unit);
  void set_share(int ranks);
  void ShadowStep(Step step, FsdpUnit& unit, int active);

  runtime::Mutex mutex_;  // hooks run on the engine's threads
  std::vector<std::shared_ptr<FsdpUnit>> units_;
  comm::Communicator& shard_;
  comm::Communicator* replicate_;
  std::unique_ptr<comm::Communicator> gather_group_, reduce_group_, replicate_group_;
  std::unique_ptr<comm::Communicator> world_group_;                // where gradients are reduced over the world
  std::map<int, std::unique_ptr<comm::Communicator>> neighbours_;  // by FsdpUnit::backward_ranks
  StoragePool pool_;
  bool in_windows_ = false;
  bool sync_ = true;
  int summoned_ = 0;  // calls of UnshardAll without their ReshardAll
  int ranks_ = 1;     // all of them
  double share_ = 1;  // of a rank's gradient in the average
  Join* join_ = nullptr;
  Joinable* joinable_ = nullptr;
  bool drops_gradients_ = false;       // of the shards, before the next reduction that this rank shadows
  bool backward_ = false;              // one is under way, or an exception has ended it
  BackwardPass pass_;                  // that one
  bool counts_runs_ = false;           // the forward pass under way may get a backward pass
  std::vector<FsdpUnit*> order_;       // units in this iteration's forward pass
  std::vector<FsdpUnit*> last_order_;  // and the one before
  std::vector<FsdpUnit*> to_reduce_;   // in this backward pass: against the order of the forward pass
  size_t next_to_reduce_ = 0;
  int64_t time_ = 0;                // of the units' runs
  std::vector<FsdpUnit*> passing_;  // gathered in this backward pass, which may need them after the last gradient
  std::vector<Reduction> reductions_;
  FsdpTraffic traffic_;
  bool concerns_others_ = false;  // an exception that ends the backward pass under way
};

}  // namespace cohort::trainer
