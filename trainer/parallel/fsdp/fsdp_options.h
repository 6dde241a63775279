// The choices of FullyShardedDataParallel, under PyTorch's names.
#pragma once

#include <optional>

#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace cohort::trainer {

// What a rank keeps between uses, with n ranks and P parameters of 4 bytes. The names are those of PyTorch's first
// FSDP; its second says the same by the mesh and by reshard_after_forward, which wins where it is set:
//
//   sharding_strategy    the same as          with reshard_after_forward =
//   kFullShard                                 true, but the outermost unit keeps everything
//   kShardGradOp         kFullShard            false
//   kNoShard             kFullShard            anything, over a mesh of (n, 1): nothing is gathered
//   kHybridShard         kFullShard            as it, over a mesh of (replicas, shards), which it insists on
//   kHybridShardZero2    kShardGradOp          as it, over such a mesh
//
// So kFullShard over a mesh of two dimensions is kHybridShard, and kShardGradOp with reshard_after_forward = true is
// kFullShard, whose outermost unit keeps nothing either.
enum class ShardingStrategy {
  kFullShard,         // FULL_SHARD: 1/n of everything; parameters are gathered for forward and again for backward
  kShardGradOp,       // SHARD_GRAD_OP: the same, but parameters stay gathered from forward to the end of backward
  kNoShard,           // NO_SHARD: everything on every rank
  kHybridShard,       // HYBRID_SHARD: as kFullShard within a row of a 2-D mesh, replicated over its rows
  kHybridShardZero2,  // _HYBRID_SHARD_ZERO2: as kShardGradOp within a row
};

// Types to compute and communicate in; parameters, their gradients and the optimizer's state keep the module's own.
struct MixedPrecision {
  std::optional<c10::ScalarType> param_dtype;   // of gathered parameters, and so of compute
  std::optional<c10::ScalarType> reduce_dtype;  // of gradients under way; unset: param_dtype
  // The outermost forward's floating-point results are cast to it; alone or in containers that MapTensors
  // (tensors_of.h) knows.
  std::optional<c10::ScalarType> output_dtype;
  bool cast_forward_inputs = true;  // floating-point tensors in forward's arguments, found likewise, to param_dtype
};

enum class BackwardPrefetch {
  kNone,         // parameters are gathered when backward needs them
  kBackwardPre,  // BACKWARD_PRE: the next unit's are gathered while this one's gradients are computed
};

// What forward leaves of a unit's gathered parameters for backward, as fully_shard's argument of that name.
class ReshardAfterForward {
 public:
  // true: the rank's shard, and backward gathers all shards again. false: everything.
  ReshardAfterForward(bool reshard) : ranks_(reshard ? 0 : 1) {}
  // An n-th on each of n neighbouring ranks, so that backward gathers among those only: P / n bytes for less traffic
  // between hosts (ZeRO++'s hpZ). n divides the number of ranks that share the parameters; 1 is false, all is true.
  ReshardAfterForward(int ranks) : ranks_(ranks) {}
  // 0: all that share the parameters.
  int ranks() const { return ranks_; }

 private:
  int ranks_;
};

struct FullyShardedDataParallelOptions {
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  // Unset: as the strategy says, but the outermost unit keeps everything, because backward begins with it. Set, it
  // overrules the strategy, for the outermost unit too.
  std::optional<ReshardAfterForward> reshard_after_forward;
  MixedPrecision mixed_precision;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;
  // The next unit's parameters, in the order of the last forward pass, are gathered while this one computes.
  bool forward_prefetch = true;
  // Over a 2-D mesh gradients are summed by one reduce-scatter of all ranks and an all-gather among the replicas, not
  // by a reduce-scatter among the shards and an all-reduce among the replicas. That sends more between the replicas ((n
  // - 1) / n of a whole gradient), but sums in the order of all ranks: under Determinism::kOrderInvariant it gives the
  // bits of DDP. The outermost unit's counts.
  bool reduce_over_world = false;
  // Shards lie in pinned memory of the host, their gradients and the optimizer's state in ordinary memory of the host;
  // a device has gathered units and gradients under way only (CPUOffload(offload_params=True)). Gradients come to the
  // host by a copy for each unit, which the end of the backward pass waits for. Nothing changes for modules on the CPU.
  bool cpu_offload = false;
  // Shards, gathered parameters and buffers are made on this device, wherever the module's are: for modules made under
  // DeferredInit, whose parameters say that they are on the CPU, and have no room there. Inputs must come from it.
  // Unset: where the module's are.
  std::optional<c10::Device> device_id;
  // All ranks start from rank 0's parameters and buffers.
  bool sync_module_states = true;
};

}  // namespace cohort::trainer
