// GradScaler, after torch.amp.GradScaler: scales the loss so that small gradients do not vanish in float16.
//
//   GradScaler scaler;
//   {
//     const Autocast autocast(at::kCUDA);
//     loss = criterion(model.forward(input), target);
//   }
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);  // only if gradients are to be looked at, for clipping
//   scaler.step(optimizer);      // skipped where a gradient is infinite or no number
//   scaler.update();
//
// Ranks must agree on skipping. They agree by themselves if every rank has all averaged gradients
// (DistributedDataParallel). If parameters are cut among ranks, their placements say which (shards, tensor-parallel
// ranks; placement/placement_table.h). If only gradients are split (ShardedDataParallel), pass the groups. If ranks of
// one group are cut over other axes, as stages of a pipeline of which one alone has tensor-parallel layers, pass the
// mesh.
//
// The scale is a float32, as in torch, so it takes the same values (tests/trainer/examples/pytorch_parity_test.py).
//
// Gradients in float16 must not be unscaled in float16: the values that the scale has saved would vanish.
// MasterWeights, alone or within ZeroRedundancyOptimizer, takes them as they are and unscales its float32 copies of
// them. After unscale_ they are float32 until step(). For other optimizers float16 gradients are refused, as by torch's
// GradScaler. With groups they are unscaled in place, as by its ShardedGradScaler.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/state/grad_norm.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;     // after growth_interval steps without infinities
  double backoff_factor = 0.5;  // after a step with one
  int64_t growth_interval = 2000;
  bool enabled = true;  // false: everything is as without a scaler
};

class GradScaler {
 public:
  // Shares infinities over the axes that cut or own the optimizer's parameters; with a mesh over all of its axes but
  // "replicate", in one call. It shares them over `groups`, too, as FairScale's ShardedGradScaler does: of their ranks
  // each gradient is on one only. Mesh and groups must outlive this. Throws c10::Error for options out of range.
  explicit GradScaler(GradScalerOptions options = {}, std::vector<comm::Communicator*> groups = {},
                      DeviceMesh* mesh = nullptr);

  // Returns `loss` times the scale. A float16 or bfloat16 loss becomes a float32, which holds the product.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the gradients of the optimizer's parameters by the scale, once between updates. Collective over the groups;
  // blocks. Throws c10::Error when it is called twice or after step, over groups under Join, and for float16 gradients
  // as said above. Throws DistributedError when the ranks cannot agree.
  void unscale_(torch::optim::Optimizer& optimizer);
  // Does unscale_ and clip_grad_norm_ (grad_norm.h) with one all-reduce for each group, which carries the norm and
  // whether a gradient was infinite or no number. Clips nothing where the norm is not finite, since step() will skip.
  // Returns the norm of the unscaled gradients. Collective, blocks and throws as unscale_ does.
  at::Tensor unscale_and_clip_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type = 2.0);
  // Calls optimizer.step() unless a gradient is infinite or no number, on all ranks alike. Returns whether it stepped.
  // Unscales first if unscale_ has not; for MasterWeights only the copies, and .grad stays as it is. Collective and
  // blocks as both are. Throws as they do. Also throws c10::Error when it is called twice between updates, or, without
  // groups, when no parameter has a gradient.
  bool step(torch::optim::Optimizer& optimizer);
  // Returns whether a gradient of the optimizer was infinite or no number, on any rank, when it was last unscaled.
  // Without a value it was not unscaled since the last update. Local.
  std::optional<bool> found_inf(const torch::optim::Optimizer& optimizer) const;
  // Adjusts the scale, or sets it, after all optimizers' steps. Local. Throws c10::Error when nothing was unscaled or
  // stepped.
  void update(std::optional<double> new_scale = std::nullopt);

  double get_scale() const { return options_.enabled ? scale_ : 1; }
  bool is_enabled() const { return options_.enabled; }
  // Returns the values for checkpoints: the scale and the number of steps since it changed.
  std::map<std::string, std::string> state_dict() const;
  // Restores them. Throws c10::Error when a value is missing or no number.
  void load_state_dict(const std::map<std::string, std::string>& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct Seen {
    Stage stage = Stage::kReady;
    bool has_gradients = false;  // here, or maybe on another rank
    bool found_infinity = false;
  };

  // Makes `found` positive on all ranks of the groups if it is on one.
  using Share = std::function<void(const ModelRanks& ranks, double* found)>;

  // Looks for infinities, on all ranks, and multiplies gradients by `factor`.
  void Unscale(torch::optim::Optimizer& optimizer, double factor, const Share& share = nullptr);
  // The ranks among which infinities in this optimizer's gradients are shared.
  ModelRanks RanksFor(torch::optim::Optimizer& optimizer) const;

  GradScalerOptions options_;
  std::vector<comm::Communicator*> groups_;
  DeviceMesh* mesh_;
  double scale_;  // a float32's value
  int64_t growth_tracker_ = 0;
  std::map<const torch::optim::Optimizer*, Seen> optimizers_;  // since the last update
};

}  // namespace cohort::trainer
