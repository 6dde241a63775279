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
// the same; the results are in place when backward() returns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "comm/communicator.h"
#include "trainer/gradient_buckets.h"

namespace cohort::trainer {

// A parameter that the reducer averages.
struct ReducedParameter {
  std::string name;
  at::Tensor tensor;  // a leaf that requires grad
  int device = 0;     // LocalDevice::index of the part that it belongs to
};

class Reducer {
 public:
  // Registers hooks on the parameters; they stay until the reducer is destroyed. `groups[d]` carries the buckets of
  // device index d; they must outlive the reducer. All ranks must pass equal parameters in equal order (the owner
  // checks). Throws DistributedError and c10::Error.
  Reducer(std::vector<ReducedParameter> parameters, std::vector<comm::Communicator*> groups, BucketLimits limits);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before a forward pass. Where autograd records, the first one after a backward pass rebuilds the buckets
  // (collective, once). Throws when the last backward pass did not complete.
  void PrepareForward();
  // Before a backward pass whose gradients are to be averaged; not called inside no_sync.
  void PrepareBackward();

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

  void BuildBuckets(const std::vector<int>& order);
  void OnGradient(int parameter);
  void CopyIntoBucket(int parameter);
  void LaunchReadyBuckets();
  void Finish();
  void CopyOut(Bucket& bucket);
  void ThrowForMissing();
  void RebuildFromObservedOrder();

  std::vector<ReducedParameter> parameters_;
  std::vector<comm::Communicator*> groups_;
  BucketLimits limits_;
  std::shared_ptr<Shared> shared_;
  std::vector<std::shared_ptr<void>> accumulators_;  // keeps torch's AccumulateGrad nodes, and so the hooks, alive

  std::vector<std::vector<int>> assignment_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<int> bucket_of_;      // by parameter
  std::vector<int64_t> offset_of_;  // element offset in its bucket, by parameter
  State state_ = State::kIdle;
  std::vector<bool> ready_;  // by parameter, in this backward pass
  size_t next_bucket_ = 0;   // the first that is not launched
  std::vector<int> observed_order_;
  bool rebuilt_ = false;
  bool callback_queued_ = false;
};

}  // namespace cohort::trainer
