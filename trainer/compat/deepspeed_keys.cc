#include "cohort/trainer/compat/deepspeed_keys.h"

#include <algorithm>
#include <utility>

#include "c10/util/Exception.h"
#include "cohort/trainer/base/json_text.h"

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;
using enum KeyUse;

constexpr ConfigKey kKeys[] = {
    {"train_batch_size", kApplied, "64"},
    {"train_micro_batch_size_per_gpu", kApplied, "2"},
    {"gradient_accumulation_steps", kApplied, "2"},
    {"gradient_clipping", kApplied, "0.5"},
    {"steps_per_print", kApplied, "3"},
    {"managed_gradient_accumulation", kRefused, "false", "true",
     "call step() after each backward(); the engine counts micro batches"},
    {"gradient_allreduce_op", kRefused, R"("sum")", R"("mean")",
     "gradients are averaged; multiply the learning rate or the loss instead"},
    {"prescale_gradients", kWithoutEffect, "true"},
    {"gradient_predivide_factor", kWithoutEffect, "2.0"},
    {"communication_data_type", kRefused, R"("fp16")", kOffModelType,
     "gradients are sent in the type in which the model trains"},
    {"seq_parallel_communication_data_type", kWithoutEffect, R"("bf16")"},
    {"fp32_allreduce", kRefused, "true", "false", "gradients are sent in the type in which the model trains"},
    {"sparse_gradients", kWithoutEffect, "true"},
    {"dataloader_drop_last", kRefused, "true", "false",
     "the program has its own loader; DistributedSampler's drop_last does it"},
    {"disable_allgather", kWithoutEffect, "true"},
    {"allgather_size", kWithoutEffect, "1000"},
    {"zero_allow_untested_optimizer", kWithoutEffect, "true"},
    {"zero_force_ds_cpu_optimizer", kWithoutEffect, "false"},
    {"disable_python_gc", kWithoutEffect, "true"},
    {"wall_clock_breakdown", kWithoutEffect, "true"},
    {"memory_breakdown", kWithoutEffect, "true"},
    {"dump_state", kWithoutEffect, "true"},
    {"vocabulary_size", kWithoutEffect, "1000"},
    {"log_level", kWithoutEffect, R"("debug")"},
    {"use_data_before_expert_parallelism", kWithoutEffect, "true"},
    {"graph_harvesting", kWithoutEffect, "true"},
    {"zero_optimization", kApplied, "true"},
    {"zero_optimization.stage", kApplied, "1"},
    {"zero_optimization.reduce_bucket_size", kApplied, "1000"},
    {"zero_optimization.allgather_bucket_size", kApplied, "1000"},
    {"zero_optimization.ignore_unused_parameters", kApplied, "false"},
    {"zero_optimization.allgather_partitions", kWithoutEffect, "false"},
    {"zero_optimization.overlap_comm", kWithoutEffect, "true"},
    {"zero_optimization.reduce_scatter", kWithoutEffect, "false"},
    {"zero_optimization.contiguous_gradients", kWithoutEffect, "false"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", kWithoutEffect, "false"},
    {"zero_optimization.compute_grad_norm", kWithoutEffect, "false"},
    {"zero_optimization.round_robin_gradients", kWithoutEffect, "true"},
    {"zero_optimization.parameter_alignment", kWithoutEffect, "true"},
    {"zero_optimization.elastic_checkpoint", kWithoutEffect, "true"},
    {"zero_optimization.offload_param", kWithoutEffect, R"({"device": "cpu"})"},
    {"zero_optimization.offload_optimizer", kWithoutEffect, R"({"device": "cpu"})"},
    {"zero_optimization.cpu_offload", kWithoutEffect, "true"},
    {"zero_optimization.cpu_offload_param", kWithoutEffect, "true"},
    {"zero_optimization.cpu_offload_params", kWithoutEffect, "true"},
    {"zero_optimization.cpu_offload_use_pin_memory", kWithoutEffect, "true"},
    {"zero_optimization.sub_group_size", kWithoutEffect, "1000"},
    {"zero_optimization.legacy_stage1", kWithoutEffect, "true"},
    {"zero_optimization.stage3_max_live_parameters", kWithoutEffect, "1000"},
    {"zero_optimization.stage3_max_reuse_distance", kWithoutEffect, "1000"},
    {"zero_optimization.stage3_prefetch_bucket_size", kWithoutEffect, "1000"},
    {"zero_optimization.stage3_param_persistence_threshold", kWithoutEffect, "1000"},
    {"zero_optimization.stage3_model_persistence_threshold", kWithoutEffect, "1000"},
    {"zero_optimization.stage3_module_granularity_threshold", kWithoutEffect, "1"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kWithoutEffect, "true"},
    {"zero_optimization.stage3_allgather_sequential", kWithoutEffect, "true"},
    {"zero_optimization.stage3_partition_stream_chunk_size", kWithoutEffect, "1000"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kWithoutEffect, "true"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", kWithoutEffect, "true"},
    {"zero_optimization.prefetch_bucket_size", kWithoutEffect, "1000"},
    {"zero_optimization.param_persistence_threshold", kWithoutEffect, "1000"},
    {"zero_optimization.model_persistence_threshold", kWithoutEffect, "1000"},
    {"zero_optimization.max_live_parameters", kWithoutEffect, "1000"},
    {"zero_optimization.max_reuse_distance", kWithoutEffect, "1000"},
    {"zero_optimization.gather_16bit_weights_on_model_save", kWithoutEffect, "true"},
    {"zero_optimization.module_granularity_threshold", kWithoutEffect, "1"},
    {"zero_optimization.use_all_reduce_for_fetch_params", kWithoutEffect, "true"},
    {"zero_optimization.allgather_sequential", kWithoutEffect, "true"},
    {"zero_optimization.partition_stream_chunk_size", kWithoutEffect, "1000"},
    {"zero_optimization.zero_hpz_partition_size", kWithoutEffect, "2"},
    {"zero_optimization.mics_shard_size", kWithoutEffect, "2"},
    {"zero_optimization.mics_hierarchical_params_gather", kWithoutEffect, "true"},
    {"zero_optimization.memory_efficient_linear", kWithoutEffect, "false"},
    {"zero_optimization.pipeline_loading_checkpoint", kWithoutEffect, "true"},
    {"zero_optimization.override_module_apply", kWithoutEffect, "false"},
    {"zero_optimization.log_trace_cache_warnings", kWithoutEffect, "true"},
    {"zero_optimization.enable_sanity_checks", kWithoutEffect, "true"},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", kWithoutEffect, "true"},
    {"zero_optimization.leaf_module", kWithoutEffect, R"({"classes": []})"},
    {"zero_optimization.load_from_fp32_weights", kRefused, "false", "true",
     "float32 copies are loaded as they were saved"},
    {"zero_optimization.zenflow", kRefused, R"({"topk_ratio": 0.05})", "", "every gradient is applied in its own step"},
    {"zero_optimization.zero_quantized_weights", kRefused, "true", "false", "nothing is quantized here"},
    {"zero_optimization.zero_quantized_nontrainable_weights", kRefused, "true", "false", "nothing is quantized here"},
    {"zero_optimization.zero_quantized_gradients", kRefused, "true", "false", "nothing is quantized here"},
    {"zero_optimization.zeropp_loco_param", kRefused, R"({"err_beta": 0.8})", "", "nothing is quantized here"},
    {"optimizer", kApplied, R"({"type": "SGD"})"},
    {"optimizer.type", kApplied, R"("SGD")"},
    {"optimizer.params", kApplied, R"({"lr": 0.5})"},
    {"optimizer.legacy_fusion", kWithoutEffect, "true"},
    {"optimizer.params.lr", kApplied, "0.5"},
    {"optimizer.params.betas", kApplied, "[0.5, 0.6]"},
    {"optimizer.params.eps", kApplied, "1e-3"},
    {"optimizer.params.weight_decay", kApplied, "0.25"},
    {"optimizer.params.amsgrad", kApplied, "true"},
    {"optimizer.params.adam_w_mode", kApplied, "false"},
    {"optimizer.params.torch_adam", kApplied, "true"},
    {"optimizer.params.momentum", kApplied, "0.5"},
    {"optimizer.params.dampening", kApplied, "0.5"},
    {"optimizer.params.nesterov", kApplied, "true"},
    {"optimizer.params.bias_correction", kRefused, "false", "true", "Adam's moments are corrected"},
    {"optimizer.params.maximize", kRefused, "true", "false", "negate the loss"},
    {"optimizer.params.max_grad_norm", kRefused, "1.0", "",
     "gradient_clipping of the file does it, and DeepSpeed refuses this one too"},
    {"optimizer.params.fp32_optimizer_states", kRefused, "false", "true", "moments are float32"},
    {"optimizer.params.foreach", kWithoutEffect, "true"},
    {"optimizer.params.fused", kWithoutEffect, "true"},
    {"optimizer.params.capturable", kWithoutEffect, "true"},
    {"optimizer.params.differentiable", kWithoutEffect, "true"},
    {"optimizer.params.set_grad_none", kWithoutEffect, "false"},
    {"optimizer.params.decoupled_weight_decay", kRefused, "true", "false", "choose AdamW"},
    {"scheduler", kApplied, R"({"type": "WarmupLR"})"},
    {"scheduler.type", kApplied, R"("WarmupLR")"},
    {"scheduler.params", kApplied, R"({"warmup_max_lr": 0.5})"},
    {"scheduler.params.warmup_min_lr", kApplied, "0.125"},
    {"scheduler.params.warmup_max_lr", kApplied, "0.5"},
    {"scheduler.params.warmup_num_steps", kApplied, "7"},
    {"scheduler.params.warmup_type", kApplied, R"("linear")"},
    {"scheduler.params.total_num_steps", kApplied, "70"},
    {"scheduler.params.warmup_min_ratio", kApplied, "0.125"},
    {"scheduler.params.cos_min_ratio", kApplied, "0.25"},
    {"scheduler.params.cycle_min_lr", kApplied, "0.02"},
    {"scheduler.params.cycle_max_lr", kApplied, "0.2"},
    {"scheduler.params.cycle_first_step_size", kApplied, "7"},
    {"scheduler.params.cycle_second_step_size", kApplied, "70"},
    {"scheduler.params.cycle_first_stair_count", kApplied, "7"},
    {"scheduler.params.cycle_second_stair_count", kApplied, "70"},
    {"scheduler.params.decay_step_size", kApplied, "7"},
    {"scheduler.params.decay_lr_rate", kApplied, "0.5"},
    {"scheduler.params.decay_mom_rate", kApplied, "0.5"},
    {"scheduler.params.cycle_momentum", kApplied, "false"},
    {"scheduler.params.cycle_min_mom", kApplied, "0.5"},
    {"scheduler.params.cycle_max_mom", kApplied, "0.95"},
    {"scheduler.params.lr_range_test_min_lr", kApplied, "0.5"},
    {"scheduler.params.lr_range_test_step_size", kApplied, "7"},
    {"scheduler.params.lr_range_test_step_rate", kApplied, "0.5"},
    {"scheduler.params.lr_range_test_staircase", kApplied, "true"},
    {"scheduler.params.last_batch_iteration", kRefused, "5", "-1",
     "load a checkpoint; the schedule goes on from its step"},
    {"fp16", kApplied, R"({"enabled": true})"},
    {"fp16.enabled", kApplied, "true"},
    {"fp16.auto_cast", kApplied, "true"},
    {"fp16.loss_scale", kApplied, "128"},
    {"fp16.initial_scale_power", kApplied, "8"},
    {"fp16.loss_scale_window", kApplied, "10"},
    {"fp16.hysteresis", kApplied, "3"},
    {"fp16.consecutive_hysteresis", kApplied, "true"},
    {"fp16.min_loss_scale", kApplied, "2"},
    {"fp16.fp16_master_weights_and_grads", kRefused, "true", "false", "the optimizer steps float32 copies"},
    {"bf16", kApplied, R"({"enabled": true})"},
    {"bf16.enabled", kApplied, "true"},
    {"bf16.check_grad_overflow", kApplied, "false"},
    {"bf16.immediate_grad_update", kWithoutEffect, "true"},
    {"bf16.bf16_master_weights_and_grads", kRefused, "true", "false", "the optimizer steps float32 copies"},
    {"bf16.bf16_optimizer_states", kRefused, "true", "false", "moments are float32"},
    {"bfloat16", kApplied, R"({"enabled": true})"},
    {"amp", kRefused, R"({"enabled": true})", kOffDisabled, "enable fp16 or bf16"},
    {"torch_autocast", kRefused, R"({"enabled": true})", kOffDisabled, "enable fp16 or bf16"},
    {"data_types", kApplied, "{}"},
    {"data_types.grad_accum_dtype", kRefused, R"("fp16")", kOffModelType,
     "gradients of several micro batches accumulate in the type in which the model trains"},
    {"data_types.param_dtype", kRefused, R"("bf16")", kOffModelType, "enable fp16 or bf16"},
    {"data_types.buffer_dtype", kRefused, R"("bf16")", kOffModelType, "enable fp16 or bf16"},
    {"data_types.keep_in_fp32_modules", kRefused, R"(["norm"])", R"("auto")",
     "all floating-point buffers are converted"},
    {"curriculum_learning", kRefused, R"({"enabled": true})", kOffDisabled, "choose the batches in the program"},
    {"data_efficiency", kRefused, R"({"enabled": true})", kOffDisabled,
     "choose the batches and their tokens in the program"},
    {"progressive_layer_drop", kRefused, R"({"enabled": true, "theta": 0.5})", kOffDisabled,
     "drop layers in the model"},
    {"eigenvalue", kRefused, R"({"enabled": true})", kOffDisabled, "nothing is quantized here"},
    {"quantize_training", kRefused, R"({"enabled": true})", kOffDisabled, "nothing is quantized here"},
    {"weight_quantization", kRefused, R"({"post_init_quant": {"fc": {"num_bits": 4}}})", "",
     "nothing is quantized here"},
    {"compression_training", kRefused, R"({"weight_quantization": {"shared_parameters": {"enabled": true}}})",
     kOffDisabled, "compress the model before or after training"},
    {"sparse_attention", kRefused, R"({"mode": "fixed"})", "", "attention is the model's own"},
    {"elasticity", kRefused, R"({"enabled": true})", kOffDisabled,
     "give the batch sizes; a checkpoint is loaded on any number of ranks"},
    {"tensor_parallel", kRefused, R"({"autotp_size": 2})", R"({"autotp_size": 1})", "use parallelize() with a mesh"},
    {"expert_parallel", kRefused, R"({"enabled": true})", kOffDisabled, "use parallelize() with a mesh"},
    {"sequence_parallel_size", kRefused, "2", "1", "use parallelize() with a mesh"},
    {"hybrid_engine", kRefused, R"({"enabled": true})", kOffDisabled, "generate with the module itself"},
    {"activation_checkpointing", kWithoutEffect, R"({"partition_activations": true})"},
    {"aio", kWithoutEffect, R"({"block_size": 1048576})"},
    {"autotuning", kWithoutEffect, R"({"enabled": true})"},
    {"checkpoint", kWithoutEffect, R"({"tag_validation": "Fail"})"},
    {"comet", kWithoutEffect, R"({"enabled": true})"},
    {"comms_logger", kWithoutEffect, R"({"enabled": true})"},
    {"compile", kWithoutEffect, R"({"deepcompile": true})"},
    {"csv_monitor", kWithoutEffect, R"({"enabled": true})"},
    {"datastates_ckpt", kWithoutEffect, R"({"host_cache_size": 1})"},
    {"flops_profiler", kWithoutEffect, R"({"enabled": true})"},
    {"monitor_config", kWithoutEffect, "{}"},
    {"nebula", kWithoutEffect, R"({"enabled": true})"},
    {"pipeline", kWithoutEffect, R"({"stages": "auto"})"},
    {"tensorboard", kWithoutEffect, R"({"enabled": true})"},
    {"timers", kWithoutEffect, R"({"throughput": {"enabled": true}})"},
    {"wandb", kWithoutEffect, R"({"enabled": true})"},
};

// Names that other programs have for keys, and what they are in DeepSpeed.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"batch_size", "train_batch_size"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"learning_rate", "optimizer.params.lr"},
    {"max_grad_norm", "gradient_clipping"},
    {"max_norm", "gradient_clipping"},
    {"clip_grad", "gradient_clipping"},
    {"clip_grad_norm", "gradient_clipping"},
    {"grad_clip", "gradient_clipping"},
    {"grad_accum_steps", "gradient_accumulation_steps"},
    {"zero", "zero_optimization"},
    {"zero_stage", "zero_optimization.stage"},
    {"warmup_steps", "scheduler.params.warmup_num_steps"},
    {"lr_scheduler", "scheduler"},
};

std::string_view Meant(const std::string& section, const std::string& key) {
  for (const auto& [name, meant] : kOtherNames) {
    if (key == name) return meant;
  }
  return MeantKey(kKeys, section, key);
}

std::string Joined(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : std::string(section) + "." + std::string(key);
}

bool HasKeys(std::string_view section) {
  return std::any_of(std::begin(kKeys), std::end(kKeys), [section](const ConfigKey& key) {
    return key.path.size() > section.size() && key.path.starts_with(section) && key.path[section.size()] == '.';
  });
}

// Facts of the configuration that decide about keys.
struct Training {
  std::string_view model_type;
  bool accumulates = false;
};

// Whether `value` names the type in which the model trains, for the keys that are off then.
bool IsModelType(const ConfigKey& key, const Json& value, const Training& training) {
  if (key.path == "data_types.grad_accum_dtype" && !training.accumulates && value == "fp32") return true;
  return key.off == kOffModelType && value.is_string() && value.get_ref<const std::string&>() == training.model_type;
}

// Whether `value` splits layers over one rank.
bool SplitsNothing(const ConfigKey& key, const Json& value) {
  if (key.path != "tensor_parallel" || !value.is_object()) return false;
  const auto size = value.find("autotp_size");
  return size == value.end() || size->is_null() || *size == 0 || *size == 1;
}

void RefuseUnknown(const std::string& section, const std::string& key, const Json& value) {
  const std::string path = Joined(section, key.substr(0, 200));
  const std::string_view meant = Meant(section, key);
  TORCH_CHECK(meant.empty(), "DeepSpeedConfig: ", path, " is no key of DeepSpeed; did you mean ", meant, "?");
  TORCH_CHECK(section.empty(), "DeepSpeedConfig: ", path, " is no key of DeepSpeed; remove it");
  TORCH_CHECK(!Enables(value), "DeepSpeedConfig: ", path,
              " switches something on that DeepSpeedEngine does not know; remove it, or set it to false");
}

void Check(const Json& object, const std::string& section, const Training& training,
           std::vector<std::string>& without_effect) {
  for (const auto& item : object.items()) {
    const std::string path = Joined(section, item.key());
    const Json& value = item.value();
    const ConfigKey* const key = FindKey(kKeys, path);
    if (key == nullptr) {
      RefuseUnknown(section, item.key(), value);
      without_effect.push_back(path);
    } else if (key->use == kWithoutEffect) {
      without_effect.push_back(path);
    } else if (key->use == kRefused) {
      TORCH_CHECK(IsModelType(*key, value, training) || SplitsNothing(*key, value) || IsOff(*key, value),
                  "DeepSpeedConfig: ", path, " is ", ShortText(value),
                  ", which DeepSpeedEngine does not do: ", key->remedy);
    } else if (value.is_object() && HasKeys(path)) {
      Check(value, path, training, without_effect);
    }
  }
}

}  // namespace

std::span<const ConfigKey> DeepSpeedKeys() { return kKeys; }

std::vector<std::string> DeepSpeedKeysWithoutEffect(const Json& file, std::string_view model_type, bool accumulates) {
  std::vector<std::string> without_effect;
  Check(file, "", {.model_type = model_type, .accumulates = accumulates}, without_effect);
  return without_effect;
}

}  // namespace cohort::trainer
