// The keys of a DeepSpeed configuration. Each one is applied, changes nothing but speed, memory or logs, or is refused.
// DEEPSPEED.md lists them for users.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/trainer/base/config_keys.h"
#include "nlohmann/json.hpp"

namespace cohort::trainer {

// A value of ConfigKey::off: "fp16", "bf16" or "fp32", as the model trains, is off.
inline constexpr std::string_view kOffModelType = R"("model type")";

// All keys of DeepSpeed's "DeepSpeed Configuration JSON", those that its source reads beside them, and those of older
// versions. What lies within a section without keys of its own is used as the section is.
std::span<const ConfigKey> DeepSpeedKeys();

// Returns the keys of `file`, an object, that have no effect; nested ones as "fp16.hysteresis". `model_type` is "fp16",
// "bf16" or "fp32". `accumulates`: the gradients of several micro batches are added up. Throws c10::Error, which names
// the key and the remedy, for
// - a refused key that is not off,
// - a key that DeepSpeed has not, within a section,
// - a key of the file itself that looks like one of DeepSpeed's, or that switches something on.
std::vector<std::string> DeepSpeedKeysWithoutEffect(const nlohmann::json& file, std::string_view model_type,
                                                    bool accumulates);

}  // namespace cohort::trainer
