// Reducer: the part of DistributedDataParallel that knows nothing of modules' call signatures. It watches gradients
// become ready, packs them into buckets and averages the buckets over the ranks while the backward pass goes on.
//
//   backward  ──grad p9──grad p8──┬─grad p7──grad p6──┬─grad p5 ...──┐
//   bucket 0  [p9 p8] ────────────► all-reduce ═══════╪══════════╗   │
//   bucket 1           [p7 p6] ───────────────────────► all-reduce ══╪══╗
//   end of backward                                                  ▼  wait, copy the averages into .grad
//
// Semantics are those of PyTorch's DDP (torch/csrc/distributed/c10d/reducer.cpp): buckets in reversed order of
// registration at first, rebuilt once in the order that rank 0 observed in the first backward pass; a gradient is
// multiplied by 1 / world size while it is copied into its bucket; buckets are launched in index order, on every rank
// the same; the results are in place when backward() returns. Buckets lie in window memory where they can.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/autograd/backward_pass.h"
#include "cohort/trainer/autograd/gradient_slot.h"
#include "cohort/trainer/parallel/replicate/comm_hook.h"
#include "cohort/trainer/parallel/replicate/gradient_buckets.h"

namespace cohort::trainer {

// A parameter that the reducer averages.
struct ReducedParameter {
  std::string name;
  at::Tensor tensor;  // a leaf that requires grad
  int device = 0;     // LocalDevice::index of the part that it belongs to
  int owner = -1;     // the rank whose .grad gets the average, alone; -1: all ranks. Of all parameters or of none
};

struct ReducerOptions {
  BucketLimits limits;
  // .grad is a view of the bucket, which saves a copy and its memory.
  bool gradient_as_bucket_view = false;
  // Parameters that the outputs don't depend on count as ready at once; what no rank used keeps its .grad.
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

  // Before a forward pass; `averages` says whether PrepareBackward follows it. Where it does not, what an earlier
  // forward pass has begun stays as it is. Throws when the last backward pass did not complete.
  void PrepareForward(bool averages);
  // Whether the order of the first backward pass has been seen and not been used yet; the same on all ranks, those that
  // shadowed it too.
  bool NeedsRebuild() const;
  // Buckets in the order that rank `root` observed, which had a backward pass of its own. Collective, once.
  void Rebuild(int root);
  // Before a backward pass whose gradients are to be averaged; not called inside no_sync. Averages are sums divided by
  // `divisor`. Another pass through the same graph throws c10::Error, and fails the communicators.
  void PrepareBackward(const std::vector<at::Tensor>& outputs, int divisor);
  // Before a backward pass whose gradients are to be left alone: they are, also where an earlier forward pass waits for
  // the one that averages. `searched`: `outputs` are all; else throws c10::Error where one does.
  void PrepareAccumulation(const std::vector<at::Tensor>& outputs, bool searched);
  // The collectives of a backward pass, for a rank that has no inputs left: with what its backward passes have
  // accumulated since the last average, mostly zero.
  void ShadowBackward(int divisor);

  // Fails the buckets' communicators here and on the other ranks.
  void Abort(const std::string& why);

  // The buckets in force, as parameter indices, for tests and people.
  const std::vector<std::vector<int>>& buckets() const { return assignment_; }
  bool rebuilt() const { return rebuilt_; }

 private:
  struct Bucket;
  struct Shared;  // what the autograd hooks hold on to

  enum class State {
    kIdle,       // gradients are left alone
    kCollecting  // a backward pass is averaging
  };

  void AddHook(int parameter);
  void BuildBuckets(const std::vector<int>& order);
  void BuildBucket(int index);
  void LayOut(Bucket& bucket);
  void EnsureBuffer(Bucket& bucket);
  at::Tensor ViewOf(int parameter) const;
  void BeginCollecting();
  void QueueFinish();
  void BeginBackward();
  bool GivesGradients() const;
  void BeginUnaveraged();
  void BeginAccumulating();
  void MarkAccumulated();
  void OnGradient(int parameter);
  void MarkReady(int parameter);
  void FindUnused(const std::vector<at::Tensor>& outputs);
  void MarkUnused();
  void CopyIntoBucket(int parameter);
  void LaunchReadyBuckets();
  void Launch(Bucket& bucket, int index);
  void LaunchToOwners(Bucket& bucket, int index);
  absl::Status KeepOwned(Bucket& bucket);
  void Finish();
  void FinishGuarded();
  void WaitForBuckets();
  void WaitForUsage();
  void CopyOut(Bucket& bucket);
  void CopyOutOwned(Bucket& bucket);
  void Fail(const std::string& why);
  [[noreturn]] void ThrowForMissing();
  bool to_owners() const { return parameters_.front().owner >= 0; }
  bool counts_usage() const {
    return options_.find_unused_parameters || (options_.static_graph && !static_usage_known_);
  }
  bool first_static_iteration() const { return options_.static_graph && expected_calls_.empty(); }

  std::vector<ReducedParameter> parameters_;
  std::vector<comm::Communicator*> groups_;
  ReducerOptions options_;
  std::shared_ptr<CommHook> hook_;
  std::shared_ptr<Shared> shared_;
  std::vector<std::shared_ptr<void>> accumulators_;  // keeps torch's AccumulateGrad nodes, and so the hooks, alive

  std::vector<std::vector<int>> assignment_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<int> bucket_of_;       // by parameter
  std::vector<int64_t> offset_of_;   // element offset in its bucket, by parameter
  std::vector<GradientSlot> slots_;  // of parameters; those of owners have none, since their buckets come and go
  State state_ = State::kIdle;
  int divisor_ = 1;
  bool shadow_ = false;      // this backward pass only answers the others'
  std::vector<bool> ready_;  // by parameter, in this backward pass
  size_t next_bucket_ = 0;   // the first that is not launched
  std::vector<int> observed_order_;
  bool others_observed_ = false;  // an order, in a backward pass that this rank shadowed
  bool rebuilt_ = false;
  bool callback_queued_ = false;
  BackwardPass pass_;              // that the callback is queued in
  std::vector<int> unused_;        // by the outputs: marked when backward begins, as gradients may be zeroed until then
  bool unused_may_come_ = false;   // from checkpointed functions: marked at the end, those that have not
  BackwardPass again_;             // one that goes through a graph whose gradients are no longer averaged
  BackwardPass accumulating_;      // one that averages nothing, before the one that is to average
  bool together_ = false;          // that pass went on into the one that averages
  std::vector<bool> accumulated_;  // by parameter: gradients since the last average, in passes without one

  std::vector<int> calls_;           // by parameter: gradients in this backward pass
  std::vector<int> expected_calls_;  // static graph: what the first backward pass had
  bool static_usage_known_ = false;  // static graph: globally_unused_ holds from now on
  at::Tensor usage_;                 // int32, by parameter: ranks that had a gradient since the last average
  runtime::Work usage_work_;
  std::vector<bool> globally_unused_;
  std::vector<at::Tensor> kept_;  // by parameter: what .grad was where it shares the bucket's memory and may be unused
};

}  // namespace cohort::trainer
