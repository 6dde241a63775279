// Options of FullyShardedDataParallel, under PyTorch's names.
#pragma once

#include <optional>

#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace cohort::trainer {

// The strategy says what a rank keeps between uses, on n ranks. The names are those of PyTorch's first FSDP. Its second
// one says the same by the mesh and by reshard_after_forward, which wins where it is set:
//
//   sharding_strategy    the same as          with reshard_after_forward =
//   kFullShard                                 true, but the outermost unit keeps everything
//   kShardGradOp         kFullShard            false
//   kNoShard             kFullShard            anything, over a mesh of (n, 1): nothing is gathered
//   kHybridShard         kFullShard            as it, over a mesh of (replicas, shards), which must be given
//   kHybridShardZero2    kShardGradOp          as it, over such a mesh
//
// So kFullShard over a mesh of two dimensions is kHybridShard. kShardGradOp with reshard_after_forward = true is
// kFullShard whose outermost unit keeps nothing either.
enum class ShardingStrategy {
  kFullShard,         // FULL_SHARD: 1/n of everything; parameters are gathered for forward and again for backward
  kShardGradOp,       // SHARD_GRAD_OP: the same, but parameters stay gathered from forward to the end of backward
  kNoShard,           // NO_SHARD: everything on every rank
  kHybridShard,       // HYBRID_SHARD: as kFullShard within a row of a 2-D mesh, replicated over its rows
  kHybridShardZero2,  // _HYBRID_SHARD_ZERO2: as kShardGradOp within a row
};

// Types to compute and communicate in. Parameters, their gradients and the optimizer's state keep the module's type.
struct MixedPrecision {
  std::optional<c10::ScalarType> param_dtype;   // type of gathered parameters, and so of compute
  std::optional<c10::ScalarType> reduce_dtype;  // type of gradients that are reduced; unset: param_dtype
  // The outermost forward casts its floating-point results to this type, alone or in containers that MapTensors
  // (tensors_of.h) knows.
  std::optional<c10::ScalarType> output_dtype;
  // Forward casts floating-point tensors in its arguments, found in the same way, to param_dtype.
  bool cast_forward_inputs = true;
};

enum class BackwardPrefetch {
  kNone,         // parameters are gathered when backward needs them
  kBackwardPre,  // BACKWARD_PRE: those of the next unit are gathered while this unit's gradients are computed
};

// The part of a unit's gathered parameters that forward leaves for backward, as fully_shard's argument of that name.
class ReshardAfterForward {
 public:
  // true: forward leaves the rank's shard, and backward gathers all shards again. false: it leaves everything.
  ReshardAfterForward(bool reshard) : ranks_(reshard ? 0 : 1) {}
  // Forward leaves one n-th on each of n neighbouring ranks, and backward gathers among those only (ZeRO++'s hpZ). That
  // takes memory for one n-th of the parameters and saves traffic between hosts. n divides the number of ranks that
  // share the parameters; 1 is false, all is true.
  ReshardAfterForward(int ranks) : ranks_(ranks) {}
  // Ranks that backward gathers among; 0: all that share the parameters.
  int ranks() const { return ranks_; }

 private:
  int ranks_;
};

struct FullyShardedDataParallelOptions {
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  // Overrules the strategy, for the outermost unit too. Unset, the strategy counts, but the outermost unit keeps
  // everything, because backward begins with it.
  std::optional<ReshardAfterForward> reshard_after_forward;
  MixedPrecision mixed_precision;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;
  // Gathers the next unit's parameters, in the order of the last forward pass, while this one computes.
  bool forward_prefetch = true;
  // Over a 2-D mesh, sums gradients by one reduce-scatter of all ranks and an all-gather among the replicas. Otherwise
  // a reduce-scatter among the shards and an all-reduce among the replicas do it. The option sends more between the
  // replicas, (n - 1) / n of a whole gradient, but sums in the order of all ranks: under Determinism::kOrderInvariant
  // it gives the bits of DDP. That of the outermost unit counts.
  bool reduce_over_world = false;
  // Keeps shards in pinned host memory, and their gradients and the optimizer's state in ordinary host memory
  // (CPUOffload(offload_params=True)). A device has gathered units and gradients under way only. The end of the
  // backward pass waits for one copy of gradients to the host for each unit. Nothing changes for modules on the CPU.
  bool cpu_offload = false;
  // Makes shards, gathered parameters and buffers on this device; unset: on that of the module. It serves modules made
  // under DeferredInit, whose parameters say that they are on the CPU and have no memory there. Inputs must be on it.
  std::optional<c10::Device> device_id;
  // Gives all ranks rank 0's parameters and buffers to start from. Without it, replicas are compared before the first
  // forward pass, and it throws DistributedError on all of them where they differ.
  bool sync_module_states = true;
};

}  // namespace cohort::trainer
