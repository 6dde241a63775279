// FlatGradient: the whole gradients of a unit's parameters in one vector, which one reduce-scatter takes.
//
//   parameters  a [5 rows]  b [2 rows]                     3 ranks
//   gradients   |a0 a1|b0|a2 a3|b1|a4 --|--|               shard after shard; -- is padding
//
// Gradients are copied into it as backward brings them, divided by the number of ranks. It exists from the first of
// them until its reduction takes it. Passes under no_sync add to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/autograd/gradient_slot.h"
#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"
#include "cohort/trainer/transfer/device_stream.h"

namespace cohort::trainer {

class WindowPool;

class FlatGradient {
 public:
  // `options` are those of the vector: the type that gradients are reduced in, and the device that computes them.
  // `parameters` outlives this. Local.
  FlatGradient(const std::vector<FsdpParameter>& parameters, int shards, int64_t shard_numel,
               const at::TensorOptions& options);

  // Vectors in host memory come from `pool` from now on; null: from ordinary memory.
  void set_pool(std::shared_ptr<WindowPool> pool) { pool_ = std::move(pool); }
  // Bytes of a vector in host memory; 0 where it lies on a device.
  size_t host_bytes() const;

  // Whether some gradient is yet to be reduced.
  bool defined() const { return flat_.defined(); }
  // Adds `grad` times `share` to what parameter number `index` has.
  void Add(int index, const at::Tensor& grad, double share);
  // The vector, with zeros where nothing came. There is none afterwards.
  at::Tensor Release();
  // Multiplies what it holds by `factor`.
  void Scale(double factor);
  void Drop();

 private:
  at::Tensor New() const;
  GradientSlot SlotOf(const FsdpParameter& parameter) const;
  at::Tensor BlocksOf(const FsdpParameter& parameter) const;
  void ZeroPadding() const;
  void AddByTorch(int index, const at::Tensor& grad, double share);
  void AddRows(int index, const at::Tensor& rows, int64_t first, int64_t ranks, double share);
  int64_t numel() const { return shard_numel_ * shards_; }

  const std::vector<FsdpParameter>& parameters_;
  const int shards_;
  const int64_t shard_numel_;
  const at::TensorOptions options_;
  std::shared_ptr<WindowPool> pool_;
  at::Tensor flat_;
  std::vector<bool> filled_;  // by parameter: flat_ has its gradient
  StreamChain streams_;       // that fill flat_
};

}  // namespace cohort::trainer
