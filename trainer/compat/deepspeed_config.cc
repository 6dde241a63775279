#include "cohort/trainer/compat/deepspeed_config.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <limits>
#include <sstream>

#include "c10/util/Exception.h"
#include "cohort/trainer/base/json_text.h"
#include "cohort/trainer/compat/deepspeed_keys.h"
#include "nlohmann/json.hpp"

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;

constexpr double kMostExamples = int64_t{1} << 30;  // of a batch, so that their product with ranks is a number
constexpr double kMostSteps = int64_t{1} << 20;     // of accumulation, of batches of as many examples
constexpr double kMostElements = int64_t{1} << 50;  // of a bucket, so that their bytes are
constexpr double kMostScalePower = 127;             // the largest of float32, in which the loss is scaled
constexpr double kMostScale = 0x1p127;

// An object of the file, and which of its keys were asked for. The sections that DeepSpeed reads with pydantic are
// lenient: there "128" is a number, and 1 and "true" are true.
class Section {
 public:
  Section(const Json& json, std::string name, bool lenient = false)
      : json_(json), name_(std::move(name)), lenient_(lenient) {
    TORCH_CHECK(json.is_object(), "DeepSpeedConfig: ", name_.empty() ? "the file" : name_, " is no JSON object");
  }

  // Each returns whether the file gives the key.
  template <typename T>
  bool Take(const std::string& key, T& value) {
    const Json* given = Find(key);
    if (given == nullptr) return false;
    const Json found = lenient_ ? Converted<T>(*given) : *given;
    const bool fits = std::is_same_v<T, std::string> ? found.is_string()
                      : std::is_same_v<T, bool>      ? found.is_boolean()
                      : std::is_integral_v<T>        ? IsWhole<T>(found)
                                                     : found.is_number();
    TORCH_CHECK(fits, "DeepSpeedConfig: ", Path(key), " is ", ShortText(*given), ", which is no ",
                std::is_same_v<T, std::string> ? "text"
                : std::is_same_v<T, bool>      ? "true or false"
                : std::is_integral_v<T>        ? "whole number"
                                               : "number",
                !std::is_same_v<T, std::string> && given->is_string() ? "; write it without quotes" : "");
    value = found.get<T>();
    return true;
  }
  // A number from `least` to `most`.
  template <typename T>
  bool TakeNumber(const std::string& key, T& value, double least,
                  double most = static_cast<double>(std::numeric_limits<T>::max())) {
    if (!Take(key, value)) return false;
    TORCH_CHECK(static_cast<double>(value) >= least, "DeepSpeedConfig: ", Path(key), " is ", value,
                " and must be at least ", least);
    TORCH_CHECK(static_cast<double>(value) <= most, "DeepSpeedConfig: ", Path(key), " is ", value,
                " and must be at most ", most);
    return true;
  }
  // Two numbers of at least 0 and less than 1.
  void TakeBetas(const std::string& key, double& first, double& second) {
    const Json* found = Find(key);
    if (found == nullptr) return;
    TORCH_CHECK(found->is_array() && found->size() == 2 && (*found)[0].is_number() && (*found)[1].is_number(),
                "DeepSpeedConfig: ", Path(key), " is ", ShortText(*found), ", which is no pair of numbers");
    first = (*found)[0].get<double>();
    second = (*found)[1].get<double>();
    const auto in_range = [](double beta) { return beta >= 0 && beta < 1; };
    TORCH_CHECK(in_range(first) && in_range(second), "DeepSpeedConfig: ", Path(key), " is ", ShortText(*found),
                "; both must be at least 0 and less than 1");
  }
  // Lets `take` read the object `key`. Refuses keys of it that DeepSpeedEngine applies, but not beside the section's
  // others; `owner` says to what.
  void Within(const std::string& key, const std::function<void(Section&)>& take, const std::string& owner = "",
              bool lenient = false) {
    const Json* found = Find(key);
    if (found == nullptr) return;
    Section section(*found, Path(key), lenient);
    take(section);
    section.RefuseRest(owner);
  }
  // Appends the paths of those of the keys that the file has.
  void AppendIfGiven(std::initializer_list<const char*> keys, std::vector<std::string>& paths) const {
    for (const char* key : keys) {
      if (json_.contains(key)) paths.push_back(Path(key));
    }
  }
  // Throws for a key of those that are applied which `take` did not ask for.
  void RefuseRest(const std::string& owner) const {
    for (const auto& item : json_.items()) {
      const std::string path = Path(item.key());
      const bool asked = std::find(asked_.begin(), asked_.end(), item.key()) != asked_.end();
      TORCH_CHECK(asked || !IsApplied(path) || item.value().is_null(), "DeepSpeedConfig: ", path, " is nothing that ",
                  owner, " takes");
    }
  }

 private:
  template <typename T>
  static bool IsWhole(const Json& value) {
    if constexpr (std::is_integral_v<T>) {
      constexpr T kLeast = std::numeric_limits<T>::min(), kMost = std::numeric_limits<T>::max();
      if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(kMost);
      if (value.is_number_integer()) return value.get<int64_t>() >= kLeast && value.get<int64_t>() <= kMost;
      // 5e8 is a common bucket size.
      return value.is_number_float() && std::nearbyint(value.get<double>()) == value.get<double>() &&
             std::abs(value.get<double>()) < std::min(1e15, static_cast<double>(kMost));
    }
    return false;
  }
  template <typename T>
  static Json Converted(const Json& value) {
    if constexpr (std::is_same_v<T, bool>) {
      if (value == 1 || value == "true" || value == "True") return true;
      if (value == 0 || value == "false" || value == "False") return false;
    } else if constexpr (!std::is_same_v<T, std::string>) {
      if (!value.is_string()) return value;
      const Json number = ParseJson(value.get<std::string>()).value;
      if (number.is_number()) return number;
    }
    return value;
  }
  std::string Path(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }
  const Json* Find(const std::string& key) {
    asked_.push_back(key);
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return nullptr;
    TORCH_CHECK(*found != "auto", "DeepSpeedConfig: ", Path(key),
                " is \"auto\", which another program fills in; give a value");
    return &*found;
  }
  static bool IsApplied(const std::string& path) {
    const ConfigKey* const key = FindKey(DeepSpeedKeys(), path);
    return key != nullptr && key->use == KeyUse::kApplied;
  }

  const Json& json_;
  std::string name_;
  bool lenient_;
  std::vector<std::string> asked_;
};

void SettleBatchSizes(DeepSpeedConfig& config, int64_t ranks) {
  int64_t& batch = config.train_batch_size;
  int64_t& micro = config.train_micro_batch_size_per_gpu;
  int64_t& accumulate = config.gradient_accumulation_steps;
  TORCH_CHECK(batch > 0 || micro > 0,
              "DeepSpeedConfig: needs train_batch_size or train_micro_batch_size_per_gpu, as DeepSpeed does");
  if (batch > 0 && micro == 0) {
    accumulate = std::max<int64_t>(accumulate, 1);
    micro = batch / (accumulate * ranks);
  } else if (batch > 0 && accumulate == 0) {
    accumulate = batch / (micro * ranks);
  }
  accumulate = std::max<int64_t>(accumulate, 1);
  if (batch == 0) batch = micro * accumulate * ranks;
  TORCH_CHECK(micro > 0 && batch == micro * accumulate * ranks, "DeepSpeedConfig: train_batch_size ", batch,
              " is not train_micro_batch_size_per_gpu ", micro, " * gradient_accumulation_steps ", accumulate, " * ",
              ranks, " ranks");
}

void TakeSgd(Section& params, DeepSpeedConfig::Optimizer& optimizer) {
  params.TakeNumber("momentum", optimizer.momentum, 0);
  params.Take("dampening", optimizer.dampening);
  params.Take("nesterov", optimizer.nesterov);
  TORCH_CHECK(!optimizer.nesterov || (optimizer.momentum > 0 && optimizer.dampening == 0),
              "DeepSpeedConfig: optimizer.params.nesterov needs a momentum above 0 and no dampening");
}

void TakeAdam(Section& params, DeepSpeedConfig::Optimizer& optimizer, std::vector<std::string>& without_effect) {
  params.TakeBetas("betas", optimizer.beta1, optimizer.beta2);
  params.TakeNumber("eps", optimizer.eps, 0);
  params.Take("amsgrad", optimizer.amsgrad);
  params.Take("adam_w_mode", optimizer.adam_w_mode);
  if (optimizer.type == "AdamW") {  // DeepSpeed passes it over too
    params.AppendIfGiven({"adam_w_mode"}, without_effect);
    optimizer.adam_w_mode = true;
  }
  bool torch_adam = false;
  params.Take("torch_adam", torch_adam);
  const bool decays = params.TakeNumber("weight_decay", optimizer.weight_decay, 0);
  // The default of torch's AdamW, where DeepSpeed's own has 0.
  if (torch_adam && optimizer.adam_w_mode && !decays) {
    optimizer.weight_decay = 1e-2;
  } else {
    params.AppendIfGiven({"torch_adam"}, without_effect);
  }
}

void TakeOptimizer(Section& section, DeepSpeedConfig::Optimizer& optimizer, std::vector<std::string>& without_effect) {
  section.Take("type", optimizer.type);
  TORCH_CHECK(!optimizer.type.empty(), "DeepSpeedConfig: optimizer.type is missing; there are Adam, AdamW and SGD");
  if (optimizer.type == "adam") optimizer.type = "Adam";  // DeepSpeed takes its own optimizers in any case
  if (optimizer.type == "adamw") optimizer.type = "AdamW";
  TORCH_CHECK(optimizer.type == "Adam" || optimizer.type == "AdamW" || optimizer.type == "SGD",
              "DeepSpeedConfig: optimizer.type is ", optimizer.type,
              "; there are Adam, AdamW and SGD. For another, take `optimizer` out of the file and give DeepSpeedEngine "
              "the program's own (ClientOptimizer)");
  const auto take = [&](Section& params) {
    params.TakeNumber("lr", optimizer.lr, 0);
    if (optimizer.type == "SGD") {
      params.TakeNumber("weight_decay", optimizer.weight_decay, 0);
      TakeSgd(params, optimizer);
    } else {
      TakeAdam(params, optimizer, without_effect);
    }
  };
  section.Within("params", take, optimizer.type);
}

void TakeWarmup(Section& params, DeepSpeedConfig::Scheduler& scheduler) {
  const bool cosine = scheduler.type == "WarmupCosineLR";
  params.TakeNumber("warmup_num_steps", scheduler.warmup_num_steps, 0);
  params.Take("warmup_type", scheduler.warmup_type);
  TORCH_CHECK(scheduler.warmup_type == "log" || scheduler.warmup_type == "linear",
              "DeepSpeedConfig: scheduler.params.warmup_type is ", scheduler.warmup_type, "; there are log and linear");
  if (scheduler.type != "WarmupLR") params.TakeNumber("total_num_steps", scheduler.total_num_steps, 1);
  if (cosine) {
    params.TakeNumber("warmup_min_ratio", scheduler.warmup_min_ratio, 0);
    params.TakeNumber("cos_min_ratio", scheduler.cos_min_ratio, 0);
    return;
  }
  params.TakeNumber("warmup_min_lr", scheduler.warmup_min_lr, 0);
  if (params.TakeNumber("warmup_max_lr", scheduler.warmup_max_lr, 0)) scheduler.up_to_optimizer_lr = false;
}

void TakeOneCycle(Section& params, DeepSpeedConfig::Scheduler& scheduler) {
  const bool has_min = params.TakeNumber("cycle_min_lr", scheduler.cycle_min_lr, 0);
  const bool has_max = params.TakeNumber("cycle_max_lr", scheduler.cycle_max_lr, 0);
  TORCH_CHECK(has_min && has_max, "DeepSpeedConfig: OneCycle needs scheduler.params.",
              has_min ? "cycle_max_lr" : "cycle_min_lr");
  params.TakeNumber("cycle_first_step_size", scheduler.cycle_first_step_size, 1);
  scheduler.cycle_second_step_size = scheduler.cycle_first_step_size;
  params.TakeNumber("cycle_second_step_size", scheduler.cycle_second_step_size, 0);
  params.TakeNumber("cycle_first_stair_count", scheduler.cycle_first_stair_count, 0);
  scheduler.cycle_second_stair_count = scheduler.cycle_first_stair_count;
  params.TakeNumber("cycle_second_stair_count", scheduler.cycle_second_stair_count, 0);
  params.TakeNumber("decay_step_size", scheduler.decay_step_size, 0);
  params.TakeNumber("decay_lr_rate", scheduler.decay_lr_rate, 0);
  params.Take("decay_mom_rate", scheduler.decay_mom_rate);
  params.Take("cycle_momentum", scheduler.cycle_momentum);
  params.TakeNumber("cycle_min_mom", scheduler.cycle_min_mom, 0, 1);
  params.TakeNumber("cycle_max_mom", scheduler.cycle_max_mom, 0, 1);
}

void TakeRangeTest(Section& params, DeepSpeedConfig::Scheduler& scheduler) {
  params.TakeNumber("lr_range_test_min_lr", scheduler.lr_range_test_min_lr, 0);
  params.TakeNumber("lr_range_test_step_size", scheduler.lr_range_test_step_size, 1);
  params.TakeNumber("lr_range_test_step_rate", scheduler.lr_range_test_step_rate, 0);
  params.Take("lr_range_test_staircase", scheduler.lr_range_test_staircase);
}

void TakeScheduler(Section& section, DeepSpeedConfig& config, std::vector<std::string>& without_effect) {
  DeepSpeedConfig::Scheduler& scheduler = config.scheduler;
  section.Take("type", scheduler.type);
  const std::string& type = scheduler.type;
  const bool cosine = type == "WarmupCosineLR", decays = cosine || type == "WarmupDecayLR";
  const bool cycles = type == "OneCycle", tests = type == "LRRangeTest";
  TORCH_CHECK(decays || cycles || tests || type == "WarmupLR", "DeepSpeedConfig: scheduler.type is ",
              type.empty() ? "missing" : type,
              "; there are WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle and LRRangeTest");
  scheduler.up_to_optimizer_lr = cosine || type == "WarmupLR";
  const auto take = [&](Section& params) {
    if (tests) return TakeRangeTest(params, scheduler);
    if (!cycles) return TakeWarmup(params, scheduler);
    TakeOneCycle(params, scheduler);
    if (!scheduler.cycle_momentum || config.optimizer.type == "SGD") {  // which has no betas
      params.AppendIfGiven({"cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}, without_effect);
    }
    if (config.optimizer.type == "SGD") params.AppendIfGiven({"cycle_momentum"}, without_effect);
  };
  section.Within("params", take, type);
  TORCH_CHECK(!decays || scheduler.total_num_steps > 0, "DeepSpeedConfig: ", type,
              " needs scheduler.params.total_num_steps");
  TORCH_CHECK(!cycles || scheduler.cycle_max_lr > 0, "DeepSpeedConfig: OneCycle needs scheduler.params.cycle_max_lr");
}

void TakeFp16(Section& section, DeepSpeedConfig::Fp16& fp16, std::vector<std::string>& without_effect) {
  section.Take("enabled", fp16.enabled);
  section.Take("auto_cast", fp16.auto_cast);
  section.TakeNumber("loss_scale", fp16.loss_scale, 0, kMostScale);
  section.TakeNumber("initial_scale_power", fp16.initial_scale_power, 0, kMostScalePower);
  section.TakeNumber("loss_scale_window", fp16.loss_scale_window, 1);
  section.TakeNumber("hysteresis", fp16.hysteresis, 1);
  section.Take("consecutive_hysteresis", fp16.consecutive_hysteresis);
  section.TakeNumber("min_loss_scale", fp16.min_loss_scale, 0);
  TORCH_CHECK(!fp16.enabled || fp16.loss_scale != 0 || fp16.min_loss_scale > 0,
              "DeepSpeedConfig: fp16.min_loss_scale must be above 0 where the scale is dynamic");
  if (!fp16.enabled) section.AppendIfGiven({"auto_cast", "loss_scale"}, without_effect);
  if (fp16.enabled && fp16.loss_scale == 0) return;
  section.AppendIfGiven(
      {"initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale"},
      without_effect);
}

void TakeBf16(Section& section, DeepSpeedConfig& config, std::vector<std::string>& without_effect) {
  section.Take("enabled", config.bf16_enabled);
  section.Take("check_grad_overflow", config.bf16_check_grad_overflow);
  if (!config.bf16_enabled) section.AppendIfGiven({"check_grad_overflow"}, without_effect);
}

void TakeZero(Section& section, DeepSpeedConfig::Zero& zero, std::vector<std::string>& without_effect) {
  section.TakeNumber("stage", zero.stage, 0);
  TORCH_CHECK(zero.stage <= 2, "DeepSpeedConfig: zero_optimization.stage is ", zero.stage,
              "; for stage 3 wrap the model's modules in FullyShardedDataParallel");
  section.TakeNumber("reduce_bucket_size", zero.reduce_bucket_size, 1, kMostElements);
  section.TakeNumber("allgather_bucket_size", zero.allgather_bucket_size, 0, kMostElements);
  section.Take("ignore_unused_parameters", zero.ignore_unused_parameters);
  if (zero.stage == 0) section.AppendIfGiven({"reduce_bucket_size", "allgather_bucket_size"}, without_effect);
}

void TakeFile(Section& top, DeepSpeedConfig& config, std::vector<std::string>& without_effect) {
  top.TakeNumber("train_batch_size", config.train_batch_size, 1, kMostExamples);
  top.TakeNumber("train_micro_batch_size_per_gpu", config.train_micro_batch_size_per_gpu, 1, kMostExamples);
  top.TakeNumber("gradient_accumulation_steps", config.gradient_accumulation_steps, 1, kMostSteps);
  top.TakeNumber("gradient_clipping", config.gradient_clipping, 0);
  top.TakeNumber("steps_per_print", config.steps_per_print, 0);
  const auto zero = [&](Section& section) { TakeZero(section, config.zero_optimization, without_effect); };
  top.Within("zero_optimization", zero, "ZeRO", /*lenient=*/true);
  top.Within("optimizer", [&](Section& section) { TakeOptimizer(section, config.optimizer, without_effect); });
  top.Within("scheduler", [&](Section& section) { TakeScheduler(section, config, without_effect); });
  top.Within(
      "fp16", [&](Section& section) { TakeFp16(section, config.fp16, without_effect); }, "fp16", /*lenient=*/true);
  top.Within("bf16", [&](Section& section) { TakeBf16(section, config, without_effect); }, "bf16", /*lenient=*/true);
  top.Within("data_types", [](Section&) {});
}

// Turns what DeepSpeed's first versions wrote into today's form.
void RenewOldForms(Json& file) {
  if (!file.is_object()) return;
  const auto zero = file.find("zero_optimization");
  if (zero != file.end() && zero->is_boolean()) *zero = {{"stage", *zero == true ? 1 : 0}};
  const auto bf16 = file.find("bfloat16");
  if (bf16 == file.end()) return;
  TORCH_CHECK(!file.contains("bf16"), "DeepSpeedConfig: it has both bf16 and bfloat16; keep bf16");
  file["bf16"] = Json(*bf16);
  file.erase("bfloat16");
}

}  // namespace

DeepSpeedConfig ParseDeepSpeedConfig(const std::string& text, int ranks) {
  auto [json, why] = ParseJson(text, /*comments=*/true);
  TORCH_CHECK(why.empty(), "DeepSpeedConfig: ", why);
  RenewOldForms(json);
  DeepSpeedConfig config;
  std::vector<std::string> without_effect;
  Section top(json, "");
  TakeFile(top, config, without_effect);
  TORCH_CHECK(!config.fp16.enabled || !config.bf16_enabled, "DeepSpeedConfig: fp16 and bf16 are both enabled");
  SettleBatchSizes(config, ranks);
  const char* const model_type = config.fp16.enabled ? "fp16" : config.bf16_enabled ? "bf16" : "fp32";
  const bool accumulates = config.gradient_accumulation_steps > 1;
  for (std::string& path : DeepSpeedKeysWithoutEffect(json, model_type, accumulates)) {
    without_effect.push_back(std::move(path));
  }
  const Json::json_pointer rate("/optimizer/params/lr");
  if (config.scheduler.up_to_optimizer_lr) {
    config.scheduler.warmup_max_lr = config.optimizer.lr;
  } else if (!config.scheduler.type.empty() && json.contains(rate)) {
    without_effect.push_back("optimizer.params.lr");
  }
  const bool moves_betas = config.scheduler.type == "OneCycle" && config.scheduler.cycle_momentum;
  if (moves_betas && json.contains(Json::json_pointer("/optimizer/params/betas"))) {
    without_effect.push_back("optimizer.params.betas");
  }
  std::sort(without_effect.begin(), without_effect.end());
  config.without_effect = std::move(without_effect);
  return config;
}

DeepSpeedConfig ReadDeepSpeedConfig(const std::string& path, int ranks) {
  std::ifstream file(path);
  TORCH_CHECK(file.good(), "DeepSpeedConfig: can't read ", path);
  std::stringstream text;
  text << file.rdbuf();
  try {
    return ParseDeepSpeedConfig(text.str(), ranks);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, path, ": ", error.what_without_backtrace());
  }
}

DeepSpeedLossScale::DeepSpeedLossScale(const DeepSpeedConfig::Fp16& options)
    : options_(options),
      scale_(!options.enabled          ? 1
             : options.loss_scale != 0 ? options.loss_scale
                                       : std::ldexp(1.0, options.initial_scale_power)),
      hysteresis_(options.hysteresis) {}

void DeepSpeedLossScale::Update(bool overflow) {
  if (!dynamic()) return;
  if (overflow) {
    if (hysteresis_ == 1) {
      TORCH_CHECK(scale_ > options_.min_loss_scale, "DeepSpeedEngine: gradients overflow at the smallest loss scale (",
                  options_.min_loss_scale, "); the training has diverged");
      scale_ = std::max(scale_ / 2, options_.min_loss_scale);
    } else {
      --hysteresis_;
    }
    last_overflow_ = step_;
  } else {
    if (options_.consecutive_hysteresis) hysteresis_ = options_.hysteresis;
    if ((step_ - last_overflow_) % options_.loss_scale_window == 0) {
      hysteresis_ = options_.hysteresis;
      scale_ *= 2;
    }
  }
  ++step_;
}

void DeepSpeedLossScale::set_state(const State& state) {
  TORCH_CHECK(std::isfinite(state.scale) && state.scale > 0 && state.hysteresis >= 1 && state.last_overflow >= -1 &&
                  state.step > state.last_overflow,
              "DeepSpeedEngine: the saved state says a loss scale of ", state.scale, " with a hysteresis of ",
              state.hysteresis, " after ", state.step, " steps, the last overflow in step ", state.last_overflow);
  scale_ = state.scale;
  hysteresis_ = state.hysteresis;
  step_ = state.step;
  last_overflow_ = state.last_overflow;
}

}  // namespace cohort::trainer
