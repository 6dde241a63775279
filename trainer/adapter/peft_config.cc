#include "cohort/trainer/adapter/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "cohort/trainer/adapter/layer_pattern.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/json_text.h"

namespace cohort::trainer {
namespace {

using nlohmann::json;
using enum KeyUse;

constexpr ConfigKey kFields[] = {
    {"r", kApplied, "5"},
    {"lora_alpha", kApplied, "12"},
    {"lora_dropout", kApplied, "0.25"},
    {"use_rslora", kApplied, "true"},
    {"target_modules", kApplied, R"(["down"])"},
    {"exclude_modules", kApplied, R"(["up"])"},
    {"layers_to_transform", kApplied, "[0]"},
    {"layers_pattern", kApplied, R"("layers")"},
    {"peft_type", kRefused, R"("IA3")", R"("LORA")", "its method is another one"},
    {"bias", kRefused, R"("all")", R"("none")", "trained biases are not supported"},
    {"init_lora_weights", kRefused, R"("pissa")", "true",
     "such an adapter may belong to a base that its initialisation has changed; save it with peft as "
     "save_pretrained(folder, "
     "path_initial_model_for_weight_conversion=...), which makes it one of the unchanged base"},
    {"use_dora", kRefused, "true", "false", "not supported"},
    {"fan_in_fan_out", kWithoutEffect, "true"},
    {"lora_bias", kRefused, "true", "false", "not supported"},
    {"use_qalora", kRefused, "true", "false", "not supported"},
    {"qalora_group_size", kWithoutEffect, "8"},
    {"rank_pattern", kApplied, R"({"up": 5})"},
    {"alpha_pattern", kApplied, R"({"up": 5})"},
    {"modules_to_save", kRefused, R"(["head"])", "", "not supported"},
    {"layer_replication", kRefused, "[[0, 2]]", "", "not supported"},
    {"target_parameters", kRefused, R"(["up.weight"])", "", "not supported"},
    {"trainable_token_indices", kRefused, "[1]", "", "not supported"},
    {"megatron_config", kRefused, R"({"hidden_size": 8})", "", "not supported"},
    {"velora_config", kRefused, R"({"rank": 1})", "", "not supported"},
    {"alora_invocation_tokens", kRefused, "[1]", "", "not supported"},
    {"monteclora_config", kRefused, R"({"num_samples": 8})", "", "not supported"},
    {"arrow_config", kRefused, R"({"top_k": 3})", "", "not supported"},
    {"kasa_config", kRefused, R"({"beta": 1e-4})", "", "not supported"},
    {"use_bdlora", kRefused, R"({"nblocks": 2})", "false", "not supported"},
    {"megatron_core", kWithoutEffect, R"("megatron.core")"},
    {"loftq_config", kWithoutEffect, R"({"loftq_bits": 4})"},
    {"eva_config", kWithoutEffect, R"({"rho": 2.0})"},
    {"corda_config", kWithoutEffect, R"({"corda_method": "ipm"})"},
    {"lora_ga_config", kWithoutEffect, R"({"scale": "stable"})"},
    {"ensure_weight_tying", kWithoutEffect, "true"},
    {"task_type", kWithoutEffect, R"("CAUSAL_LM")"},
    {"auto_mapping", kWithoutEffect, R"({"base_model_class": "Net"})"},
    {"peft_version", kWithoutEffect, R"("0.21.2")"},
    {"base_model_name_or_path", kWithoutEffect, R"("some/base")"},
    {"revision", kWithoutEffect, R"("main")"},
    {"inference_mode", kWithoutEffect, "true"},
    {"runtime_config", kWithoutEffect, R"({"ephemeral_gpu_offload": false})"},
};

// Initial values of the matrices that leave the base as it is, beside true and false.
constexpr std::array<std::string_view, 3> kOfTheSameBase = {"gaussian", "orthogonal", "eva"};

[[noreturn]] void ThrowDamagedConfig(const std::string& path, const std::string& why) {
  throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged: " + why);
}

bool LeavesTheBase(const json& initialisation) {
  if (initialisation == false) return true;
  if (!initialisation.is_string()) return false;
  const auto& name = initialisation.get_ref<const std::string&>();
  return std::find(kOfTheSameBase.begin(), kOfTheSameBase.end(), name) != kOfTheSameBase.end();
}

bool IsNothing(const json& value) {
  return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

void CheckFields(const json& config, const std::string& path) {
  for (const auto& item : config.items()) {
    const json& value = item.value();
    const ConfigKey* const field = FindKey(kFields, item.key());
    const std::string name = item.key().substr(0, 200);
    if (field == nullptr) {
      const std::string_view meant = MeantKey(kFields, "", item.key());
      TORCH_CHECK(IsNothing(value), path, ": ", name, " is ", ShortText(value), ", and peft's LoRA has no such setting",
                  meant.empty() ? "" : "; did you mean ", meant, meant.empty() ? "" : "?");
    } else if (field->use == kRefused && !IsOff(*field, value)) {
      TORCH_CHECK(field->path == "init_lora_weights" && LeavesTheBase(value), path, ": ", name, " is ",
                  ShortText(value), ": ", field->remedy);
    }
  }
}

// A member of the configuration; the fallback stands for one that is absent or null.
template <typename Value>
Value Member(const json& config, const char* key, const Value& fallback, const std::string& path) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return fallback;
  const bool fits = std::is_same_v<Value, bool>      ? found->is_boolean()
                    : std::is_same_v<Value, int64_t> ? found->is_number_integer()
                                                     : found->is_number();
  if (!fits) ThrowDamagedConfig(path, std::string(key) + " is of another kind: " + ShortText(*found));
  return found->get<Value>();
}

// A pattern of the file, whose keys keep their order: the first that fits a layer counts. `text` is the whole file.
template <typename Value>
std::vector<std::pair<std::string, Value>> Pattern(const json& config, const std::string& text, const char* name,
                                                   const std::string& path) {
  const auto found = config.find(name);
  std::vector<std::pair<std::string, Value>> pattern;
  if (found == config.end() || IsNothing(*found)) return pattern;
  if (!found->is_object()) ThrowDamagedConfig(path, std::string(name) + " is of another kind: " + ShortText(*found));
  const auto ordered = nlohmann::ordered_json::parse(text);
  for (const auto& item : ordered.at(name).items()) {
    const std::string where = std::string(name) + " of " + item.key().substr(0, 200);
    const json& value = found->at(item.key());
    const bool fits = std::is_same_v<Value, int64_t> ? value.is_number_integer() : value.is_number();
    if (!fits) ThrowDamagedConfig(path, where + " is of another kind: " + ShortText(value));
    const Value number = value.get<Value>();
    if (std::is_same_v<Value, int64_t> && number <= 0) ThrowDamagedConfig(path, where + " is not positive");
    CheckLayerPattern(item.key(), path + ": " + name);
    pattern.emplace_back(item.key(), number);
  }
  return pattern;
}

bool IsGiven(const json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && !IsNothing(*found);
}

}  // namespace

std::span<const ConfigKey> PeftFields() { return kFields; }

PeftConfig ParsePeftConfig(const std::string& text, const std::string& path) {
  const auto [config, broken] = ParseJson(text);
  if (!broken.empty()) ThrowDamagedConfig(path, broken);
  if (!config.is_object()) ThrowDamagedConfig(path, "it is no JSON object");
  CheckFields(config, path);
  PeftConfig read;
  read.r = Member<int64_t>(config, "r", read.r, path);
  read.lora_alpha = Member<double>(config, "lora_alpha", read.lora_alpha, path);
  read.lora_dropout = Member<double>(config, "lora_dropout", read.lora_dropout, path);
  read.use_rslora = Member<bool>(config, "use_rslora", read.use_rslora, path);
  if (read.r <= 0) ThrowDamagedConfig(path, "r is not positive");
  read.rank_pattern = Pattern<int64_t>(config, text, "rank_pattern", path);
  read.alpha_pattern = Pattern<double>(config, text, "alpha_pattern", path);
  const auto targets = config.find("target_modules");
  if (targets == config.end() || targets->is_null() || targets->is_string()) {
    read.by_tensors = true;  // a regular expression, or all that peft finds by the model's architecture
  } else {
    for (const json& target : *targets) {
      if (!targets->is_array() || !target.is_string()) {
        ThrowDamagedConfig(path, "target_modules is of another kind: " + ShortText(*targets));
      }
      read.target_modules.push_back(target.get<std::string>());
    }
  }
  if (targets != config.end() && *targets == "all-linear") read.target_modules = {"all-linear"};
  for (const char* key : {"exclude_modules", "layers_to_transform"}) {
    if (IsGiven(config, key) || (config.contains(key) && config[key].is_number())) read.by_tensors = true;
  }
  return read;
}

}  // namespace cohort::trainer
