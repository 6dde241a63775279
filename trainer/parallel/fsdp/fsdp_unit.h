// FsdpUnit: the parameters of one FullyShardedDataParallel module, each cut into chunks of rows (row_chunks.h) that are
// padded to equal lengths, so that a rank's chunks are one vector, as long on every rank.
//
//   parameters  a [5 rows]  b [2 rows]                     3 ranks
//   shards      |a0 a1|b0|     |a2 a3|b1|     |a4 --|--|   -- is padding
//   gathered    |a0 a1 a2 a3 a4 --|b0 b1 --|               a place for each parameter, whose whole is a view of it
//   gradients   |a0 a1|b0|a2 a3|b1|a4 --|--|               flat, shard after shard: one reduce-scatter
//
// One all-gather a parameter, all of them started as one, fills the places without a copy. In host memory, where each
// costs more than copying a small parameter, the small ones of a unit lie first in the shards: one all-gather takes
// them together to staging memory behind all places, from where they are copied. Gradients are copied into the flat one
// in any case.
//
// A parameter is one torch Tensor object for ever: its data is a view of the gathered vector while the unit is
// unsharded, and this rank's rows of it, maybe none, otherwise. So optimizers made before or after see the shards, and
// modules the whole. The gathered vector's storage gives its memory back in between; views of it that autograd saved
// are valid again once it is gathered again.
//
// Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/autograd/gradient_slot.h"
#include "cohort/trainer/parallel/fsdp/fsdp_options.h"
#include "cohort/trainer/placement/row_chunks.h"
#include "cohort/trainer/transfer/device_stream.h"

namespace cohort::trainer {

class FsdpRoot;
class StoragePool;
class WindowPool;

// This rank's part of a parameter.
struct FsdpParameter {
  std::string name;                 // within the unit's module
  at::Tensor tensor;                // the module's
  std::vector<int64_t> sizes = {};  // of the whole
  int64_t numel = 0;                // of the whole
  int64_t chunk = 0;                // elements of a rank's chunk, padding included
  int64_t offset = 0;               // of the chunk in a shard
  RowChunk own = {};                // what this rank has of it, without padding
};

// A line of what CheckSameOnAllRanks compares.
std::string Describe(const FsdpParameter& parameter, const std::vector<int64_t>& sizes);

class FsdpUnit : public std::enable_shared_from_this<FsdpUnit> {
 public:
  // Cuts the parameters into `shards` shards and keeps number `shard`. Local. Throws c10::Error for parameters of
  // different types or devices, and for a reshard_after_forward that does not divide `shards`.
  FsdpUnit(std::vector<FsdpParameter> parameters, int shards, int shard,
           const FullyShardedDataParallelOptions& options);
  ~FsdpUnit();

  const std::vector<FsdpParameter>& parameters() const { return parameters_; }
  int shards() const { return shards_; }
  // Whether forward leaves less than everything, if the unit is the `outermost` or not.
  bool reshards_after_forward(bool outermost) const {
    return reshard_after_forward_ && (!outermost || options_.reshard_after_forward.has_value());
  }
  // Neighbouring ranks that gather the parameters in backward, where they are not all: ranks [k n, (k + 1) n) of the
  // shards. 0: all.
  int backward_ranks() const { return backward_ranks_; }
  // Elements that forward left for them.
  int64_t kept_numel() const { return kept_.defined() ? kept_.numel() : 0; }
  const FullyShardedDataParallelOptions& options() const { return options_; }
  bool unsharded() const { return state_ == State::kUnsharded; }
  bool sharded() const { return state_ == State::kSharded; }
  bool gathering() const { return state_ == State::kGathering; }
  // Whether unsharding takes collectives, of so many bytes together.
  bool gathers() const { return shards_ > 1 && shard_numel() > 0; }
  int64_t gathered_bytes() const { return padded_numel() * static_cast<int64_t>(full_.element_size()); }
  // Elements of a shard, and of all of them.
  int64_t shard_numel() const { return shard_.defined() ? shard_.numel() : 0; }
  int64_t padded_numel() const { return shard_numel() * shards_; }

  // Where peers read the shard and the flat gradients from, of which the root makes one at a time in `pool`: the shard
  // moves into a window of `group`. Collective over it. Nothing where what is gathered is another type or device.
  void EnterWindows(comm::Communicator& group, std::shared_ptr<WindowPool> pool);
  // Before the group goes: forgets the flat gradient, too. No operation may be under way. Local.
  void LeaveWindows();
  // Bytes of a flat gradient in host memory; 0 where it lies on a device.
  size_t flat_gradient_bytes() const;

  // Starts gathering, of what forward left among `neighbours` (backward_ranks() of them) or else of the shards; nothing
  // when it has begun already.
  void StartUnshard(comm::Communicator& group, comm::Communicator* neighbours, StoragePool& pool);
  // Ends gathering and gives the module its whole parameters. On a device the current stream waits, not the host, and
  // an error that comes later is Reshard's. Throws DistributedError.
  void FinishUnshard();
  // Gives the module its shards back. After a gathering that was started, waits for it.
  void Reshard(StoragePool& pool);
  // The same, but what backward_ranks() neighbours need stays.
  void ReshardAfterForward(StoragePool& pool);
  // This rank's shard becomes what the whole parameters say, where it is not so in their type already. Nothing unless
  // unsharded: a forward pass has taken the whole parameters away.
  void WriteBack();

  // Hooks that call `root` with each gradient, where the parameters have none yet. While unsharded, with grad enabled.
  void AddGradientHooks(const std::shared_ptr<FsdpRoot>& root);
  // Puts shards' gradients aside so that backward accumulates whole ones.
  void BeginBackward();
  // A parameter's gradient has come: it goes into the flat gradient, multiplied by `share`. Throws c10::Error where
  // that was released already in this pass.
  void TakeGradient(int parameter, double share);
  bool trainable() const { return trainable_ > 0; }
  // Some parameters get no gradient: backward may need them after the last gradient of the others.
  bool frozen_in_part() const { return trainable_ < static_cast<int>(parameters_.size()); }
  // While unsharded: somebody else has views of the gathered memory, as a graph has that will come back to it.
  bool borrowed() const;
  // Forward runs since the last backward pass began, with times that only grow. A second pass through the same graph
  // has as many as the first.
  void BeginRun(int64_t now) {
    ++runs_.count;
    runs_.began = now;
  }
  void EndRun(int64_t now) { runs_.ended = now; }
  // Before a forward pass, and where that is given up: its runs are forgotten, and those before are the last again.
  void KeepRuns() { kept_runs_ = runs_; }
  void RestoreRuns() { runs_ = kept_runs_; }
  // All of its runs had ended when `other` began its last one: backward comes to it when it is through with `other`.
  bool ran_before(const FsdpUnit& other) const { return runs_.ended < other.runs_.began; }
  void ForgetRuns() { runs_.count = backward_runs_ = 0; }
  void TakeRuns() { backward_runs_ = runs_.count > 0 ? std::exchange(runs_.count, 0) : backward_runs_; }
  // Whether this backward pass goes through more than one of them: parameters may then get a gradient from each (where
  // the type changes, or a checkpoint computes again, each has an accumulator or a pass of its own), and nobody can
  // tell which is the last before the pass ends.
  bool repeated() const { return backward_runs_ > 1; }
  // Backward has reached the unit, and has brought all of its gradients as far as is known before its end.
  bool in_backward() const { return grads_aside_; }
  bool has_all_gradients() const { return grads_aside_ && pending_ <= 0 && !repeated(); }
  // Whether a pass has brought some that are yet to be reduced.
  bool has_flat_gradient() const { return flat_grad_.defined(); }
  // The flat gradient, with zeros where nothing came, for reduce-scatter; the unit has none afterwards.
  at::Tensor ReleaseFlatGradient();
  // What it holds, times `factor`.
  void ScaleFlatGradient(double factor);
  // Forgets the flat gradient.
  void DropFlatGradient();
  // A flat gradient of zeros.
  at::Tensor ZeroFlatGradient() const;
  // The shards' .grad, from the reduced shard of the flat gradient. While sharded.
  void SetShardGradients(const at::Tensor& reduced);
  // The shards have no .grad.
  void DropShardGradients();
  // .grad of the shards as it was: a backward pass without averaging.
  void RestoreShardGradients();
  // A new backward pass expects all gradients again, of the parameters that want one now.
  void ExpectAllGradients();

 private:
  enum class State { kSharded, kGathering, kUnsharded };
  void LayOut(bool on_host);
  void Shard();
  // A call that gathers: `count` elements from `offset` on in a shard, whose ranks' follow each other from `place` on.
  struct GatherCall {
    int64_t offset = 0, count = 0, place = 0;
  };
  int64_t PlaceOf(const FsdpParameter& parameter) const { return parameter.offset * shards_; }
  runtime::Work StartGather(comm::Communicator& group, const at::Tensor& part, int64_t chunks);
  void CopyFromStaging();
  at::Tensor NewFlatGradient() const;
  GradientSlot SlotOf(const FsdpParameter& parameter) const;
  at::Tensor BlocksOf(const FsdpParameter& parameter) const;
  void ZeroPadding() const;
  void AddToFlatGradient(int index, const at::Tensor& grad, double share);
  void AddRows(int index, const at::Tensor& rows, int64_t first, int64_t ranks, double share);
  at::ScalarType compute_type() const;
  at::ScalarType reduce_type() const;
  // Whether shards and gathered parameters have one type and device, so that one can be read as the other.
  bool same_kind() const { return full_.scalar_type() == shard_.scalar_type() && full_.device() == shard_.device(); }
  at::Tensor LocalView(const at::Tensor& shard, const FsdpParameter& parameter) const;

  std::vector<FsdpParameter> parameters_;
  int shards_;
  int rank_;
  FullyShardedDataParallelOptions options_;
  bool reshard_after_forward_;
  int backward_ranks_ = 0;
  bool resident_ = false;  // one shard in the compute type: the gathered vector is the shard itself
  State state_ = State::kSharded;
  at::Tensor shard_;  // [shard_numel], in the parameters' own type; on the host where that is offloaded
  at::Tensor full_;   // [padded_numel], and the staging memory; in the compute type; has memory while unsharded
  at::Tensor kept_;   // [padded_numel / backward_ranks], of full_: this rank's part between forward and backward
  std::vector<at::Tensor> full_views_;
  std::vector<GatherCall> gather_calls_;
  int64_t staged_numel_ = 0;     // the first elements of a shard, which are gathered by way of staging memory
  int64_t gathered_chunks_ = 1;  // of each parameter, that a rank brought to the last gathering
  runtime::Work gather_;

  std::vector<std::vector<std::shared_ptr<void>>> accumulators_;  // by parameter: holds the hooks
  bool in_window_ = false;                                        // the shard
  std::shared_ptr<WindowPool> flat_pool_;                         // null: ordinary memory
  at::Tensor flat_grad_;
  std::vector<bool> filled_;  // by parameter: flat_grad_ has its gradient
  std::vector<at::Tensor> saved_grads_;
  bool grads_aside_ = false;
  int trainable_ = 0;
  std::vector<bool> seen_;  // by parameter: had a gradient in this backward pass
  int pending_ = 0;         // trainable ones that had none
  bool released_ = false;   // the flat gradient, in this backward pass
  struct Runs {
    int count = 0;
    int64_t began = 0, ended = 0;  // the last one
  };
  Runs runs_, kept_runs_;
  int backward_runs_ = 0;
  StreamChain flat_streams_;  // that fill flat_grad_
  StreamChain full_streams_;  // that fill and use full_
};

}  // namespace cohort::trainer
