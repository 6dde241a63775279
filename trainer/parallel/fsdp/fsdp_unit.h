// FsdpUnit: the parameters of one FullyShardedDataParallel module. Each parameter is cut into chunks of rows
// (row_chunks.h), which are padded to equal lengths: a rank's chunks are one vector, and as long on every rank.
//
//   weights    flat_parameters.h   the shard, the gathered vector, and which of them the module has
//   gradients  unit_gradients.h    what a backward pass has brought; flat_gradient.h is the vector that is reduced
//   runs       unit_order.h        when the unit ran forward
//
// A parameter is one torch Tensor object for ever. Its data is a view of the gathered vector while the unit is
// unsharded, and this rank's rows otherwise, maybe none. So optimizers made before or after see the shards, and modules
// see the whole.
//
// Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/parallel/fsdp/fsdp_options.h"
#include "cohort/trainer/placement/row_chunks.h"

namespace cohort::trainer {

class FlatParameters;
class FsdpRoot;
class StoragePool;
class UnitGradients;
class UnitRuns;
class WindowPool;

// One parameter of a unit, its place in the unit's flat vectors, and this rank's rows of it.
struct FsdpParameter {
  std::string name;                 // within the unit's module
  at::Tensor tensor;                // the module's
  std::vector<int64_t> sizes = {};  // of the whole
  int64_t numel = 0;                // of the whole
  int64_t chunk = 0;                // elements of a rank's chunk, padding included
  int64_t offset = 0;               // of the chunk in a shard
  RowChunk own = {};                // this rank's rows, without padding
};

// One line for CheckSameOnAllRanks. It says whether the parameter is frozen, because ranks that differ in that make
// different calls.
std::string Describe(const FsdpParameter& parameter, const std::vector<int64_t>& sizes);

// This rank's rows of the parameter in `shard`, a vector that is laid out as the unit's shards are. The view skips
// torch's dispatch, which would cost several microseconds a step for each parameter. It is no view to autograd, so
// that zero_grad can detach it where it is a gradient.
at::Tensor LocalView(const at::Tensor& shard, const FsdpParameter& parameter);

class FsdpUnit : public std::enable_shared_from_this<FsdpUnit> {
 public:
  // Cuts the parameters into `shards` shards and keeps number `shard`. Local. Throws c10::Error for parameters of
  // different types or devices, and for a reshard_after_forward that does not divide `shards`.
  FsdpUnit(std::vector<FsdpParameter> parameters, int shards, int shard,
           const FullyShardedDataParallelOptions& options);
  ~FsdpUnit();
  FsdpUnit(const FsdpUnit&) = delete;
  FsdpUnit& operator=(const FsdpUnit&) = delete;

  const std::vector<FsdpParameter>& parameters() const { return parameters_; }
  const FullyShardedDataParallelOptions& options() const { return options_; }
  int shards() const { return shards_; }
  // Its place among the units of its model, equal on all ranks. The root sets it.
  int number() const { return number_; }
  void set_number(int number) { number_ = number; }
  // Backward gathers the parameters among this number of neighbouring ranks: ranks [k n, (k + 1) n) of the shards.
  // 0: among all ranks of the shards.
  int backward_ranks() const { return backward_ranks_; }
  // Whether forward leaves less than everything. It depends on whether the unit is the outermost one.
  bool reshards_after_forward(bool outermost) const {
    return reshard_after_forward_ && (!outermost || options_.reshard_after_forward.has_value());
  }

  FlatParameters& weights() { return *weights_; }
  const FlatParameters& weights() const { return *weights_; }
  UnitGradients& gradients() { return *gradients_; }
  const UnitGradients& gradients() const { return *gradients_; }
  UnitRuns& runs() { return *runs_; }
  const UnitRuns& runs() const { return *runs_; }
  // As FlatParameters says.
  bool sharded() const;
  bool gathering() const;
  bool unsharded() const;
  int64_t padded_numel() const;
  int64_t kept_numel() const;

  // Peers read the shard from a window of `group`, and the flat gradient from one of `pool`. Collective over `group`.
  void EnterWindows(comm::Communicator& group, std::shared_ptr<WindowPool> pool);
  // Leaves the windows before the group goes, and drops the flat gradient. No operation may be under way. Local.
  void LeaveWindows();

  // FlatParameters::Reshard. Throws DistributedError for a gathering that failed.
  void Reshard(StoragePool& pool);
  // The same, but keeps what backward_ranks() neighbours need.
  void ReshardAfterForward(StoragePool& pool);

  // Adds hooks that call `root` with each gradient, to parameters that have none yet. While unsharded, with grad
  // enabled.
  void AddGradientHooks(const std::shared_ptr<FsdpRoot>& root);
  // Backward has brought all gradients of the unit, as far as can be told before its end.
  bool has_all_gradients() const;

 private:
  void AddHook(const std::shared_ptr<FsdpRoot>& root, int parameter);

  std::vector<FsdpParameter> parameters_;
  const int shards_;
  const FullyShardedDataParallelOptions options_;
  bool reshard_after_forward_;
  int backward_ranks_ = 0;
  int number_ = 0;
  std::vector<std::vector<std::shared_ptr<void>>> accumulators_;  // by parameter: holds the hooks
  std::unique_ptr<FlatParameters> weights_;
  std::unique_ptr<UnitGradients> gradients_;
  std::unique_ptr<UnitRuns> runs_;
};

}  // namespace cohort::trainer
