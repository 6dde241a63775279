// Reducer: the part of DistributedDataParallel that knows nothing of modules' call signatures. It watches gradients
// become ready, packs them into buckets and averages the buckets over the ranks while the backward pass goes on.
//
//   backward  ──grad p9──grad p8──┬─grad p7──grad p6──┬─grad p5 ...──┐
//   bucket 0  [p9 p8] ────────────► all-reduce ═══════╪══════════╗   │
//   bucket 1           [p7 p6] ───────────────────────► all-reduce ══╪══╗
//   end of backward                                                  ▼  wait, copy the averages into .grad
//
//   buckets  bucket_set.h       memory, copies and collectives
//   order    gradient_order.h   the order of gradients, by which buckets are rebuilt once
//   usage    parameter_usage.h  which parameters no rank has used
//
// Semantics are those of PyTorch's DDP (torch/csrc/distributed/c10d/reducer.cpp). Buckets are in reversed order of
// registration at first, and rebuilt once in the order that rank 0 observed in the first backward pass. A gradient is
// multiplied by 1 / world size while it is copied into its bucket. Buckets are launched in index order, on every rank
// the same. The results are in place when backward() returns.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/autograd/backward_pass.h"
#include "cohort/trainer/parallel/replicate/comm_hook.h"
#include "cohort/trainer/parallel/replicate/gradient_buckets.h"
#include "cohort/trainer/parallel/replicate/reduced_parameter.h"

namespace cohort::trainer {

class BucketSet;
class GradientOrder;
class ParameterUsage;

struct ReducerOptions {
  BucketLimits limits;
  // .grad is a view of the bucket, which saves a copy and its memory.
  bool gradient_as_bucket_view = false;
  // Parameters that the outputs don't depend on count as ready at once; parameters that no rank used keep their .grad.
  bool find_unused_parameters = false;
  // The same graph in every iteration: unused parameters and repeated gradients are learnt in the first.
  bool static_graph = false;
};

class Reducer {
 public:
  // Registers hooks on the parameters; they stay until the reducer is destroyed. `groups[d]` carries the buckets of
  // device index d; they must outlive the reducer. All ranks must pass equal parameters in equal order (the owner
  // checks). Collective; blocks. Throws DistributedError and c10::Error.
  Reducer(std::vector<ReducedParameter> parameters, std::vector<comm::Communicator*> groups, ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before the first backward pass. Throws c10::Error when there is a hook already.
  void RegisterCommHook(std::shared_ptr<CommHook> hook);

  // Before a forward pass. `averages`: it trains, on all ranks, and PrepareBackward follows it; buckets of another such
  // pass are no partners. Otherwise what an earlier forward pass has begun stays as it is. Throws when the last
  // backward pass did not complete.
  void PrepareForward(bool averages);
  // The order of the first backward pass has been seen and not been used yet. The same on all ranks, those that
  // shadowed the pass too.
  bool NeedsRebuild() const;
  // Makes buckets in the order that rank `root` observed, which had a backward pass of its own. Collective, once.
  void Rebuild(int root);
  // Before a backward pass whose gradients are to be averaged; not called inside no_sync. Averages are sums divided by
  // `divisor`. Another pass through the same graph throws c10::Error, and fails the communicators.
  void PrepareBackward(const std::vector<at::Tensor>& outputs, int divisor);
  // Before a backward pass whose gradients are left alone, also where an earlier forward pass waits for the one that
  // averages. `searched`: `outputs` are all tensors of the result. Throws c10::Error where they are not, while an
  // earlier forward pass waits.
  void PrepareAccumulation(const std::vector<at::Tensor>& outputs, bool searched);
  // Averages what backward passes have accumulated since the last average, now. Parameters that no rank has used keep
  // their .grad where options count users. Collective; blocks. Throws DistributedError on all ranks where users are not
  // counted and a parameter has no gradient.
  void ReduceAccumulated(int divisor);
  // Does the collectives of a backward pass on a rank that has no inputs left. It sends what its own backward passes
  // have accumulated since the last average, mostly zero.
  void ShadowBackward(int divisor);

  // Fails the buckets' communicators here and on the other ranks.
  void Abort(const std::string& why);

  // The buckets in force, as parameter indices, for tests and people.
  const std::vector<std::vector<int>>& buckets() const;
  bool rebuilt() const;

 private:
  struct Shared;  // what the autograd hooks hold on to

  // Legal transitions:
  //   kIdle, kExpecting -> kExpecting   PrepareBackward
  //   kIdle, kExpecting -> kShadowing   ShadowBackward
  //   kExpecting -> kBackward           the first hook of the backward pass
  //   all -> kIdle                      the pass is over, has failed, or another forward pass takes its place
  enum class Stage {
    kIdle,       // gradients are left alone
    kExpecting,  // a forward pass is over whose backward pass is to average
    kBackward,   // that backward pass goes on; a callback waits for its end
    kShadowing,  // this rank only answers the backward pass of others
  };

  void Become(Stage next);
  void AddHook(int parameter);
  void BeginCollecting(Stage stage, int divisor);
  void BeginBackward();
  void EnterBackward();
  void BeginAccumulating();
  void SendAccumulated(int divisor);
  void OnGradient(int parameter);
  void MarkReady(int parameter);
  void FindUnused(const std::vector<at::Tensor>& outputs);
  void MarkUnused();
  void MarkAccumulated();
  void FinishGuarded();
  void Finish();
  void AwaitBuckets();
  void Fail(const std::string& why);
  [[noreturn]] void ThrowForMissing();
  bool first_static_iteration() const { return options_.static_graph && expected_calls_.empty(); }

  const std::vector<ReducedParameter> parameters_;
  const ReducerOptions options_;
  const std::shared_ptr<Shared> shared_;
  std::vector<std::shared_ptr<void>> accumulators_;  // keeps torch's AccumulateGrad nodes, and so the hooks, alive
  const std::unique_ptr<BucketSet> buckets_;
  const std::unique_ptr<GradientOrder> order_;
  const std::unique_ptr<ParameterUsage> usage_;

  Stage stage_ = Stage::kIdle;
  BackwardPass pass_;          // the one of kBackward
  BackwardPass again_;         // goes through a graph whose gradients are no longer averaged
  BackwardPass accumulating_;  // averages nothing, before the one that is to average
  bool together_ = false;      // the accumulating pass went on into the one that averages

  // By parameter.
  std::vector<bool> ready_;          // in this backward pass
  std::vector<int> calls_;           // gradients in this backward pass
  std::vector<int> expected_calls_;  // static graph: what the first backward pass had
  std::vector<bool> accumulated_;    // gradients since the last average, in passes without one

  std::vector<int> unused_;       // by the outputs: marked when backward begins, as gradients may be zeroed until then
  bool unused_may_come_ = false;  // from checkpointed functions: marked at the end, those that have not
};

}  // namespace cohort::trainer
