// Reads the JSON that configures DeepSpeed's ZeRO stages 0 to 2. DeepSpeedEngine applies the keys that say what is
// trained. It refuses those that it cannot apply, and reports those that change nothing here (DEEPSPEED.md).
//
//   const DeepSpeedConfig config = ReadDeepSpeedConfig("ds_config.json", job.size());
//   for (const std::string& key : config.without_effect) std::printf("%s has no effect\n", key.c_str());
//
// Keys, defaults and their meaning: DeepSpeed's "DeepSpeed Configuration JSON".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::trainer {

struct DeepSpeedConfig {
  // train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks. The given ones determine
  // the others. Batch sizes count examples.
  int64_t train_batch_size = 0;
  int64_t train_micro_batch_size_per_gpu = 0;
  int64_t gradient_accumulation_steps = 0;
  double gradient_clipping = 0;  // by the L2 norm; 0: none
  int64_t steps_per_print = 10;  // 0: never

  struct Zero {
    int stage = 0;
    int64_t reduce_bucket_size = 500'000'000;  // elements
    // Elements of all ranks together. 0: the file does not give it, and ZeroRedundancyOptimizer's own size holds.
    // DeepSpeed's default of 500 million would be a second copy of most models.
    int64_t allgather_bucket_size = 0;
    bool ignore_unused_parameters = true;
    bool operator==(const Zero&) const = default;
  } zero_optimization;

  struct Optimizer {
    std::string type;  // Adam, AdamW, SGD; empty: the file has none, which DeepSpeedEngine refuses
    double lr = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0;
    bool adam_w_mode = true;  // Adam decays weights as AdamW does
    bool amsgrad = false;
    double momentum = 0, dampening = 0;  // SGD
    bool nesterov = false;
    bool operator==(const Optimizer&) const = default;
  } optimizer;

  struct Scheduler {
    std::string type;  // empty: none; WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest
    double warmup_min_lr = 0;
    double warmup_max_lr = 1e-3;
    // The largest rate is the optimizer's, in the place of warmup_max_lr: WarmupCosineLR, and WarmupLR without that
    // key.
    bool up_to_optimizer_lr = false;
    int64_t warmup_num_steps = 1000;
    int64_t total_num_steps = 0;  // WarmupDecayLR, WarmupCosineLR
    std::string warmup_type = "log";
    double warmup_min_ratio = 0, cos_min_ratio = 1e-4;  // WarmupCosineLR: shares of the optimizer's rate
    double cycle_min_lr = 0, cycle_max_lr = 0;          // OneCycle, to the last one here
    int64_t cycle_first_step_size = 2000, cycle_second_step_size = 2000;
    int64_t cycle_first_stair_count = 0, cycle_second_stair_count = 0;  // 0: no stairs
    int64_t decay_step_size = 0;                                        // 0: no decay behind the cycle
    double decay_lr_rate = 0, decay_mom_rate = 0;
    bool cycle_momentum = true;  // moves Adam's betas
    double cycle_min_mom = 0.8, cycle_max_mom = 0.9;
    double lr_range_test_min_lr = 1e-3;  // LRRangeTest, to the end
    int64_t lr_range_test_step_size = 2000;
    double lr_range_test_step_rate = 1;
    bool lr_range_test_staircase = false;
    bool operator==(const Scheduler&) const = default;
  } scheduler;

  struct Fp16 {
    bool enabled = false;
    bool auto_cast = false;  // convert floating-point inputs to float16
    double loss_scale = 0;   // 0: dynamic
    int initial_scale_power = 16;
    int64_t loss_scale_window = 1000;
    int hysteresis = 2;
    bool consecutive_hysteresis = false;
    double min_loss_scale = 1;
    bool operator==(const Fp16&) const = default;
  } fp16;
  bool bf16_enabled = false;
  bool bf16_check_grad_overflow = true;  // skip steps whose gradients are not finite

  std::vector<std::string> without_effect;  // "zero_optimization.overlap_comm", sorted

  bool operator==(const DeepSpeedConfig&) const = default;
};

// Parses the configuration for `ranks` ranks. Local. Throws c10::Error, which names the key, for
// - text that is no JSON object, and keys that stand twice,
// - values out of range or of another type,
// - batch sizes that do not fit together on `ranks` ranks,
// - keys that look mistyped, or belong to another section,
// - features that are not supported: stage 3 (use FullyShardedDataParallel), other optimizers and schedulers, and what
//   else DEEPSPEED.md lists as refused.
DeepSpeedConfig ParseDeepSpeedConfig(const std::string& json, int ranks);
// Parses the file `path`. Errors as above.
DeepSpeedConfig ReadDeepSpeedConfig(const std::string& path, int ranks);

// The scale of the loss in float16, after DeepSpeed's DynamicLossScaler. Overflowing gradients halve it, but only after
// `hysteresis` overflows. It doubles after `loss_scale_window` steps without an overflow.
class DeepSpeedLossScale {
 public:
  explicit DeepSpeedLossScale(const DeepSpeedConfig::Fp16& options);
  double scale() const { return scale_; }
  // Adjusts the scale after a step. Throws c10::Error when gradients overflow at the smallest scale.
  void Update(bool overflow);

  // The state that checkpoints keep.
  struct State {
    double scale = 1;
    int64_t hysteresis = 1;  // overflows left before the scale is halved
    int64_t step = 0;
    int64_t last_overflow = -1;
  };
  // Whether the scale changes: in float16, unless the configuration fixes it.
  bool dynamic() const { return options_.enabled && options_.loss_scale == 0; }
  State state() const { return {scale_, hysteresis_, step_, last_overflow_}; }
  // Throws c10::Error for a state that no training reaches.
  void set_state(const State& state);

 private:
  DeepSpeedConfig::Fp16 options_;
  double scale_;
  int64_t hysteresis_;
  int64_t step_ = 0;
  int64_t last_overflow_ = -1;
};

}  // namespace cohort::trainer
