// BucketSet: the gradient buckets of a Reducer, and the reductions that run over them.
//
//   gradients ── Add ──► bucket 0 [p9 p8] full ──► all-reduce ═══╗
//                        bucket 1 [p7 p6] full ──► all-reduce ═══╬══ Wait ══ CopyOut ──► .grad
//
// Buckets are launched in index order, on every rank the same. They lie in window memory where they can. With owners
// (ShardedDataParallel) a bucket has memory only from its first gradient until it is reduced. A sparse gradient of a
// parameter that expects one has a bucket of its own without memory (sparse_average.h); others are made dense.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "cohort/comm/communicator.h"
#include "cohort/runtime/ranges.h"
#include "cohort/trainer/autograd/gradient_slot.h"
#include "cohort/trainer/parallel/replicate/comm_hook.h"
#include "cohort/trainer/parallel/replicate/gradient_buckets.h"
#include "cohort/trainer/parallel/replicate/reduced_parameter.h"
#include "cohort/trainer/parallel/replicate/sparse_average.h"
#include "cohort/trainer/transfer/device_stream.h"

namespace cohort::trainer {

// Not thread-safe: the Reducer holds its lock.
class BucketSet {
 public:
  // `parameters` outlives this, as do the groups: `groups[d]` carries the buckets of device index d. `grad_is_view`:
  // gradients become views of the buckets. There are no buckets before Build.
  BucketSet(const std::vector<ReducedParameter>& parameters, std::vector<comm::Communicator*> groups,
            bool grad_is_view);
  ~BucketSet();
  BucketSet(const BucketSet&) = delete;
  BucketSet& operator=(const BucketSet&) = delete;

  // Makes the buckets again for gradients that come in this order. Collective; blocks. Throws DistributedError, and
  // c10::Error for parameters of one device index on different devices.
  void Build(const std::vector<int>& order, const BucketLimits& limits);
  // The buckets, as parameter indices.
  const std::vector<std::vector<int>>& assignment() const { return assignment_; }
  // Averages go to one rank each.
  bool to_owners() const { return !parameters_.empty() && parameters_.front().owner >= 0; }
  bool has_hook() const { return hook_ != nullptr; }
  void set_hook(std::shared_ptr<CommHook> hook) { hook_ = std::move(hook); }
  const std::vector<comm::Communicator*>& groups() const { return groups_; }

  // A training forward pass begins, here and on the other ranks.
  void BeginIteration() { ++iteration_; }
  // A backward pass begins, whose averages are sums divided by `divisor`. All buckets are empty.
  void Begin(int divisor);
  // Copies the gradient into its bucket, or keeps a sparse one there; zeros for an undefined one. `used`: this pass has
  // brought it. Launches the buckets whose turn it is. True when that was the last one.
  bool Add(int parameter, const at::Tensor& grad, bool used);
  bool launched_some() const { return next_ > 0; }
  bool launched_all() const { return next_ == buckets_.size(); }
  // Waits for all buckets, also when one has failed: none may go on in memory that its owner takes for its own again.
  // Returns the first error, and what was being done in `context`. Throws what the reductions of hooks throw.
  absl::Status Wait(std::string& context);
  // Gives .grad the averages; `unused` parameters, by index, keep theirs.
  void CopyOut(const std::vector<bool>& unused);

 private:
  struct Bucket {
    std::vector<int> members;
    at::TensorOptions options;
    int64_t elements = 0;  // of all members
    at::Tensor buffer;     // [elements]; with owners, only from the first gradient until it is reduced
    StreamChain streams;   // that fill it
    size_t pending = 0;    // members whose gradients are yet to come
    comm::Communicator* group = nullptr;
    runtime::Work work;
    std::unique_ptr<GradReduction> reduction;  // instead of `work`, with a communication hook
    bool sparse = false;                       // of one parameter that expects sparse gradients
    at::Tensor gradient;                       // the sparse one until it is launched; then the average
    std::unique_ptr<SparseAverage> average;    // instead of `work`
    std::string context;                       // for errors
    std::optional<runtime::Range> shown;       // in traces, from its launch to the end of the wait
    // With owners: the members lie owner by owner.
    std::vector<int64_t> counts;  // elements, by owner
    int64_t first = 0;            // where this rank's begin
    at::Tensor owned;             // this rank's part, reduced
  };
  // Names the elements of a bucket while its call is made.
  class NamedGradients;
  // A parameter's place.
  struct Place {
    Bucket* bucket = nullptr;
    int64_t offset = 0;  // in elements
    GradientSlot slot;   // none with owners, whose buckets come and go
    at::Tensor kept;     // what .grad was where it shares the bucket's memory and may be unused
  };

  void BuildBucket(int index);
  void LayOut(Bucket& bucket);
  at::Tensor ViewOf(int parameter) const;
  void CopyIn(int parameter, const at::Tensor& grad, bool used);
  void LaunchReady();
  void Launch(Bucket& bucket, int index);
  void LaunchToOwners(Bucket& bucket, int index);
  absl::Status KeepOwned(Bucket& bucket);
  void CopyOutSparse(Bucket& bucket, const std::vector<bool>& unused);
  void CopyOutShared(Bucket& bucket, const std::vector<bool>& unused);
  void CopyOutOwned(Bucket& bucket, const std::vector<bool>& unused);

  const std::vector<ReducedParameter>& parameters_;
  const std::vector<comm::Communicator*> groups_;
  const bool grad_is_view_;
  std::shared_ptr<CommHook> hook_;
  std::vector<std::vector<int>> assignment_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<Place> places_;  // by parameter
  double share_ = 1;           // a gradient is multiplied by it
  uint64_t iteration_ = 0;     // calls of another iteration are no partners
  size_t next_ = 0;            // the first bucket that is not launched
};

}  // namespace cohort::trainer
