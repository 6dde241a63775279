// Reads adapter_config.json, which Python's peft writes. PEFT.md lists what becomes of each field.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/base/config_keys.h"

namespace cohort::trainer {

// The settings of a LoRA adapter that such a file has.
struct PeftConfig {
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  bool use_rslora = false;
  // In the order of the file.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  std::vector<std::string> target_modules = {};
  // The layers are those that the file of tensors has: the configuration chooses them by expressions, by numbers or by
  // the model's architecture.
  bool by_tensors = false;
};

// All fields of peft 0.21's LoraConfig.
std::span<const ConfigKey> PeftFields();

// Parses the text of the file `path`. Throws DistributedError kDataLoss for text that is no such object, and for keys
// that stand twice. Throws c10::Error, which names the field, for one that changes what the adapter computes and is not
// applied, and for an unknown one that is not null, false or empty.
PeftConfig ParsePeftConfig(const std::string& text, const std::string& path);

}  // namespace cohort::trainer
