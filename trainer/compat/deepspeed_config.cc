#include "cohort/trainer/compat/deepspeed_config.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <limits>
#include <sstream>

#include "c10/util/Exception.h"
#include "cohort/trainer/base/json_depth.h"
#include "nlohmann/json.hpp"

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;

constexpr double kMostExamples = int64_t{1} << 30;  // of a batch, so that their product with ranks is a number
constexpr double kMostSteps = int64_t{1} << 20;     // of accumulation, of batches of as many examples
constexpr double kMostElements = int64_t{1} << 50;  // of a bucket, so that their bytes are
constexpr double kMostScalePower = 127;             // the largest of float32, in which the loss is scaled
constexpr double kMostScale = 0x1p127;

// An object of the file, and which of its keys were asked for.
class Section {
 public:
  Section(const Json& json, std::string name) : json_(json), name_(std::move(name)) {
    TORCH_CHECK(json.is_object(), "DeepSpeedConfig: ", name_.empty() ? "the file" : name_, " is no JSON object");
  }

  template <typename T>
  void Take(const std::string& key, T& value) {
    const Json* found = Find(key);
    if (found == nullptr) return;
    const bool fits = std::is_same_v<T, std::string> ? found->is_string()
                      : std::is_same_v<T, bool>      ? found->is_boolean()
                      : std::is_integral_v<T>        ? IsWhole<T>(*found)
                                                     : found->is_number();
    TORCH_CHECK(fits, "DeepSpeedConfig: ", Path(key), " is ", found->dump(), ", which is no ",
                std::is_same_v<T, std::string> ? "text"
                : std::is_same_v<T, bool>      ? "true or false"
                : std::is_integral_v<T>        ? "whole number"
                                               : "number");
    value = found->get<T>();
  }
  // A number from `least` to `most`.
  template <typename T>
  void TakeNumber(const std::string& key, T& value, double least,
                  double most = static_cast<double>(std::numeric_limits<T>::max())) {
    Take(key, value);
    TORCH_CHECK(static_cast<double>(value) >= least, "DeepSpeedConfig: ", Path(key), " is ", value,
                " and must be at least ", least);
    TORCH_CHECK(static_cast<double>(value) <= most, "DeepSpeedConfig: ", Path(key), " is ", value,
                " and must be at most ", most);
  }
  void TakePair(const std::string& key, double& first, double& second) {
    const Json* found = Find(key);
    if (found == nullptr) return;
    TORCH_CHECK(found->is_array() && found->size() == 2 && (*found)[0].is_number() && (*found)[1].is_number(),
                "DeepSpeedConfig: ", Path(key), " is ", found->dump(), ", which is no pair of numbers");
    first = (*found)[0].get<double>();
    second = (*found)[1].get<double>();
  }
  void Within(const std::string& key, const std::function<void(Section&)>& take, std::vector<std::string>& rest) {
    const Json* found = Find(key);
    if (found == nullptr) return;
    Section section(*found, Path(key));
    take(section);
    section.Rest(rest);
  }
  // Keys that were taken, and so are checked, but have no effect beside the other keys of the file. Rest reports them.
  void WithoutEffect(std::initializer_list<const char*> keys) {
    for (const char* key : keys) std::erase(asked_, key);
  }
  // Appends the keys that nobody asked for; objects whole.
  void Rest(std::vector<std::string>& rest) const {
    for (const auto& item : json_.items()) {
      if (std::find(asked_.begin(), asked_.end(), item.key()) == asked_.end()) rest.push_back(Path(item.key()));
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
  std::string Path(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }
  const Json* Find(const std::string& key) {
    asked_.push_back(key);
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return nullptr;
    TORCH_CHECK(*found != "auto", "DeepSpeedConfig: ", Path(key),
                " is \"auto\", which another program fills in; give a value");
    return &*found;
  }

  const Json& json_;
  std::string name_;
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

void TakeOptimizer(Section& section, DeepSpeedConfig::Optimizer& optimizer, std::vector<std::string>& rest) {
  section.Take("type", optimizer.type);
  TORCH_CHECK(!optimizer.type.empty(), "DeepSpeedConfig: optimizer.type is missing; there are Adam, AdamW and SGD");
  TORCH_CHECK(optimizer.type == "Adam" || optimizer.type == "AdamW" || optimizer.type == "SGD",
              "DeepSpeedConfig: optimizer.type is ", optimizer.type, "; there are Adam, AdamW and SGD");
  section.Within(
      "params",
      [&](Section& params) {
        params.TakeNumber("lr", optimizer.lr, 0);
        params.TakeNumber("weight_decay", optimizer.weight_decay, 0);
        if (optimizer.type == "SGD") {
          params.TakeNumber("momentum", optimizer.momentum, 0);
          return;
        }
        params.TakePair("betas", optimizer.beta1, optimizer.beta2);
        params.TakeNumber("eps", optimizer.eps, 0);
        if (optimizer.type == "Adam") params.Take("adam_w_mode", optimizer.adam_w_mode);
      },
      rest);
}

void TakeScheduler(Section& section, DeepSpeedConfig::Scheduler& scheduler, std::vector<std::string>& rest) {
  section.Take("type", scheduler.type);
  TORCH_CHECK(scheduler.type == "WarmupLR" || scheduler.type == "WarmupDecayLR", "DeepSpeedConfig: scheduler.type is ",
              scheduler.type, "; there are WarmupLR and WarmupDecayLR");
  section.Within(
      "params",
      [&](Section& params) {
        params.TakeNumber("warmup_min_lr", scheduler.warmup_min_lr, 0);
        params.TakeNumber("warmup_max_lr", scheduler.warmup_max_lr, 0);
        params.TakeNumber("warmup_num_steps", scheduler.warmup_num_steps, 0);
        params.Take("warmup_type", scheduler.warmup_type);
        TORCH_CHECK(scheduler.warmup_type == "log" || scheduler.warmup_type == "linear",
                    "DeepSpeedConfig: scheduler.params.warmup_type is ", scheduler.warmup_type,
                    "; there are log and linear");
        if (scheduler.type == "WarmupDecayLR") params.TakeNumber("total_num_steps", scheduler.total_num_steps, 1);
      },
      rest);
  TORCH_CHECK(scheduler.type != "WarmupDecayLR" || scheduler.total_num_steps > 0,
              "DeepSpeedConfig: WarmupDecayLR needs scheduler.params.total_num_steps");
}

void TakeFp16(Section& section, DeepSpeedConfig::Fp16& fp16) {
  section.Take("enabled", fp16.enabled);
  section.Take("auto_cast", fp16.auto_cast);
  section.TakeNumber("loss_scale", fp16.loss_scale, 0, kMostScale);
  section.TakeNumber("initial_scale_power", fp16.initial_scale_power, 0, kMostScalePower);
  section.TakeNumber("loss_scale_window", fp16.loss_scale_window, 1);
  section.TakeNumber("hysteresis", fp16.hysteresis, 1);
  section.Take("consecutive_hysteresis", fp16.consecutive_hysteresis);
  section.TakeNumber("min_loss_scale", fp16.min_loss_scale, 0);
  if (!fp16.enabled) section.WithoutEffect({"auto_cast", "loss_scale"});
  if (fp16.enabled && fp16.loss_scale == 0) return;
  section.WithoutEffect(
      {"initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale"});
}

void TakeZero(Section& section, DeepSpeedConfig::Zero& zero) {
  section.TakeNumber("stage", zero.stage, 0);
  TORCH_CHECK(zero.stage <= 2, "DeepSpeedConfig: zero_optimization.stage is ", zero.stage,
              "; for stage 3 wrap the model's modules in FullyShardedDataParallel");
  section.TakeNumber("reduce_bucket_size", zero.reduce_bucket_size, 1, kMostElements);
  section.TakeNumber("allgather_bucket_size", zero.allgather_bucket_size, 0, kMostElements);
  section.Take("ignore_unused_parameters", zero.ignore_unused_parameters);
  if (zero.stage == 0) section.WithoutEffect({"reduce_bucket_size", "allgather_bucket_size"});
}

}  // namespace

DeepSpeedConfig ParseDeepSpeedConfig(const std::string& text, int ranks) {
  TORCH_CHECK(!NestsTooDeep(text), "DeepSpeedConfig: this nests too deep");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK(!json.is_discarded(), "DeepSpeedConfig: this is no JSON");
  DeepSpeedConfig config;
  std::vector<std::string>& rest = config.without_effect;
  Section top(json, "");
  top.TakeNumber("train_batch_size", config.train_batch_size, 0, kMostExamples);
  top.TakeNumber("train_micro_batch_size_per_gpu", config.train_micro_batch_size_per_gpu, 0, kMostExamples);
  top.TakeNumber("gradient_accumulation_steps", config.gradient_accumulation_steps, 0, kMostSteps);
  top.TakeNumber("gradient_clipping", config.gradient_clipping, 0);
  top.TakeNumber("steps_per_print", config.steps_per_print, 1);
  top.Within("zero_optimization", [&](Section& section) { TakeZero(section, config.zero_optimization); }, rest);
  top.Within("optimizer", [&](Section& section) { TakeOptimizer(section, config.optimizer, rest); }, rest);
  top.Within("scheduler", [&](Section& section) { TakeScheduler(section, config.scheduler, rest); }, rest);
  top.Within("fp16", [&](Section& section) { TakeFp16(section, config.fp16); }, rest);
  top.Within("bf16", [&](Section& section) { section.Take("enabled", config.bf16_enabled); }, rest);
  top.Rest(rest);
  const Json::json_pointer rate("/optimizer/params/lr");
  if (!config.scheduler.type.empty() && json.contains(rate)) rest.push_back("optimizer.params.lr");
  std::sort(rest.begin(), rest.end());
  TORCH_CHECK(!config.fp16.enabled || !config.bf16_enabled, "DeepSpeedConfig: fp16 and bf16 are both enabled");
  SettleBatchSizes(config, ranks);
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

double LearningRateAt(const DeepSpeedConfig& config, int64_t step) {
  const DeepSpeedConfig::Scheduler& scheduler = config.scheduler;
  if (scheduler.type.empty()) return config.optimizer.lr;
  const auto at = static_cast<double>(step);
  const auto warmup = static_cast<double>(std::max<int64_t>(scheduler.warmup_num_steps, 2));
  double share = 1;
  if (at < warmup) {
    share = scheduler.warmup_type == "log" ? std::log(at + 1) / std::log(warmup) : at / warmup;
  } else if (scheduler.type == "WarmupDecayLR") {
    const auto total = static_cast<double>(scheduler.total_num_steps);
    share = std::max(0.0, (total - at) / std::max(1.0, total - warmup));
  }
  return scheduler.warmup_min_lr + (scheduler.warmup_max_lr - scheduler.warmup_min_lr) * std::min(share, 1.0);
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
