// DeepSpeedEngine: the counterpart of deepspeed.initialize's engine, for ZeRO stages 0 to 2.
//
//   DeepSpeedEngine<Net> engine(net, ReadDeepSpeedConfig("ds_config.json", job.size()), job.world());
//   for (each micro batch) {
//     auto loss = torch::nll_loss(engine.forward(images), labels);
//     engine.backward(loss);
//     engine.step();  // an optimizer step after gradient_accumulation_steps of them
//   }
//
// Stage 0 is DistributedDataParallel. Stage 1 adds ZeroRedundancyOptimizer. Stage 2 is ShardedDataParallel: gradients
// are reduced to their owners, where DeepSpeed all-reduces them. In fp16 and bf16 the optimizer steps float32 copies
// (MasterWeights).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/Exception.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/base/distinct_parameters.h"
#include "cohort/trainer/compat/deepspeed_config.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/state/training_state.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// Makes the optimizer of an engine in place of the one that the configuration names: what a Python program gives
// deepspeed.initialize as `optimizer`.
using DeepSpeedOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const torch::nn::Module& module, const DeepSpeedConfig& config, comm::Communicator& world)>;

// Whether the module is converted to float16 or bfloat16.
bool HasSmallType(const DeepSpeedConfig& config);
// The bytes that ZeRO gathers parameters by; 0: all at once.
int64_t AllgatherBucketBytes(const DeepSpeedConfig& config);

// An optimizer of that class over the module's parameters, split among the ranks and with float32 copies as `config`
// says.
template <typename OptimizerClass, typename Options>
std::unique_ptr<torch::optim::Optimizer> MakeDeepSpeedOptimizer(const torch::nn::Module& module, const Options& options,
                                                                const DeepSpeedConfig& config,
                                                                comm::Communicator& world) {
  using Master = MasterWeights<OptimizerClass>;
  const std::vector<at::Tensor> parameters = DistinctParameters(module.parameters());
  const bool split = config.zero_optimization.stage > 0, small = HasSmallType(config);
  ZeroRedundancyOptimizerOptions zero;
  if (AllgatherBucketBytes(config) > 0) zero.allgather_bucket_bytes = AllgatherBucketBytes(config);
  using Zero = ZeroRedundancyOptimizer<OptimizerClass>;
  using ZeroOfMasters = ZeroRedundancyOptimizer<Master>;
  if (split && small) return std::make_unique<ZeroOfMasters>(parameters, world, options, zero);
  if (split) return std::make_unique<Zero>(parameters, world, options, zero);
  if (small) return std::make_unique<Master>(parameters, options);
  return std::make_unique<OptimizerClass>(parameters, options);
}

// A program's own optimizer:
//
//   DeepSpeedEngine<Net> engine(net, config, job.world(), ClientOptimizer<RMSprop>(RMSpropOptions(1e-3)));
template <typename OptimizerClass, typename Options>
DeepSpeedOptimizer ClientOptimizer(const Options& options) {
  return [options](const torch::nn::Module& module, const DeepSpeedConfig& config, comm::Communicator& world) {
    return MakeDeepSpeedOptimizer<OptimizerClass>(module, options, config, world);
  };
}

// The part that does not depend on the module's forward signature.
class DeepSpeedEngineBase {
 public:
  virtual ~DeepSpeedEngineBase() = default;
  DeepSpeedEngineBase(const DeepSpeedEngineBase&) = delete;
  DeepSpeedEngineBase& operator=(const DeepSpeedEngineBase&) = delete;

  // Accumulates the gradients of `loss` / gradient_accumulation_steps, scaled in fp16. The last micro batch of a batch
  // averages them over the ranks.
  void backward(const at::Tensor& loss);
  // Call it after each backward. At the last micro batch of a batch it unscales and clips in float32, then steps. It
  // skips the step if gradients overflowed, on all ranks alike. It then clears the gradients and sets the next learning
  // rate. At other micro batches it only counts.
  void step();

  // Whether the current micro batch is the last one of its batch.
  bool is_gradient_accumulation_boundary() const {
    return (micro_steps_ + 1) % config_.gradient_accumulation_steps == 0;
  }
  int64_t train_micro_batch_size_per_gpu() const { return config_.train_micro_batch_size_per_gpu; }
  int64_t global_steps() const { return global_steps_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  double loss_scale() const { return loss_scale_.scale(); }
  // The rate of the schedule, or of the optimizer where a program's own has none.
  double get_lr() const;
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  const DeepSpeedConfig& config() const { return config_; }

  // The state of the module and its optimizer that SaveTrainingState keeps. It refers to both.
  TrainingState training_state();
  // The further values for checkpoints: the steps, which determine the learning rate, and the scale of the loss.
  //
  //   SaveTrainingState(world, "checkpoints/step-00000100", engine.training_state(), engine.state_dict());
  //   const auto saved = LoadLatestTrainingState(world, "checkpoints", engine.training_state());
  //   if (saved.has_value()) engine.load_state_dict(saved->values);  // else there is none yet
  //
  // Throws c10::Error in the midst of a batch, whose gradients no checkpoint keeps.
  CheckpointValues state_dict() const;
  // Restores these values; call it after loading the training state. Training goes on at the beginning of a batch,
  // without the gradients of an incomplete one. Throws c10::Error when something is missing or out of range.
  void load_state_dict(const CheckpointValues& state);

 protected:
  // Rank 0 prints the keys without effect.
  DeepSpeedEngineBase(torch::nn::Module& module, DeepSpeedConfig config, comm::Communicator& world,
                      const DeepSpeedOptimizer& optimizer);
  // Called with an error of the module in catch. Throws c10::Error that says what to do where libtorch computes no
  // float16 on the CPU; returns for other errors.
  void ExplainHalves(const c10::Error& error) const;
  DistributedDataParallelOptions DataParallelOptions() const;
  // Null in stage 0.
  ZeroRedundancyOptimizerBase* zero() const { return zero_; }
  void set_data_parallel(DataParallelState* state) { data_parallel_ = state; }
  // Called before a forward pass.
  void ChooseSync();
  at::Tensor CastInput(const at::Tensor& input) const;

 private:
  void SetSchedule();
  void ClearGradients();
  bool Overflows();
  double GradientFactor();
  void ScaleGradients(double factor);

  DeepSpeedConfig config_;
  torch::nn::Module& module_;
  comm::Communicator& world_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  bool own_rate_ = false;                        // the optimizer's, which no schedule sets
  ZeroRedundancyOptimizerBase* zero_ = nullptr;  // optimizer_, if it is one
  DataParallelState* data_parallel_ = nullptr;
  DeepSpeedLossScale loss_scale_;
  int64_t micro_steps_ = 0, global_steps_ = 0, skipped_steps_ = 0;
  double last_loss_ = 0;
};

template <typename ModuleType>
class DeepSpeedEngine : public DeepSpeedEngineBase {
 public:
  // Collective over `world`, which must outlive this. In fp16 and bf16 the module is converted to that type. An
  // `optimizer` of the program's takes the place of the configuration's. Throws DistributedError. Throws c10::Error for
  // neither of them, among others.
  DeepSpeedEngine(std::shared_ptr<ModuleType> module, DeepSpeedConfig config, comm::Communicator& world,
                  const DeepSpeedOptimizer& optimizer = nullptr)
      : DeepSpeedEngineBase(*module, std::move(config), world, optimizer) {
    if (zero() != nullptr && this->config().zero_optimization.stage == 2) {
      wrapped_ =
          std::make_unique<ShardedDataParallel<ModuleType>>(std::move(module), *zero(), world, DataParallelOptions());
    } else {
      wrapped_ = std::make_unique<DistributedDataParallel<ModuleType>>(std::move(module), world, DataParallelOptions());
    }
    set_data_parallel(wrapped_.get());
  }

  template <typename... Inputs>
  auto forward(const Inputs&... inputs) {
    ChooseSync();
    try {
      return wrapped_->forward(Cast(inputs)...);
    } catch (const c10::Error& error) {
      ExplainHalves(error);
      throw;
    }
  }
  const std::shared_ptr<ModuleType>& module() const { return wrapped_->module(); }

 private:
  at::Tensor Cast(const at::Tensor& input) const { return CastInput(input); }
  template <typename T>
  const T& Cast(const T& input) const {
    return input;
  }
  std::unique_ptr<DistributedDataParallel<ModuleType>> wrapped_;
};

}  // namespace cohort::trainer
