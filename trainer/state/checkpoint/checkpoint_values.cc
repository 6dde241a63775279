#include "cohort/trainer/state/checkpoint/checkpoint_values.h"

#include <charconv>
#include <system_error>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/json_text.h"
#include "nlohmann/json.hpp"

namespace cohort::trainer {

int64_t WholeNumberOf(const CheckpointValues& values, const std::string& key) {
  const auto found = values.find(key);
  std::string why = " is missing";
  if (found != values.end()) {
    const std::string& text = found->second;
    int64_t number = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size() && number >= 0) return number;
    why = " is \"" + text + "\", which is no whole number";
  }
  throw DistributedError(absl::StatusCode::kInvalidArgument,
                         "the checkpoint's value " + key + why + "; was it saved by another program?");
}

std::string AliasesText(const std::map<std::string, std::string>& aliases) { return nlohmann::json(aliases).dump(); }

std::map<std::string, std::string> AliasesIn(const CheckpointValues& values) {
  const auto found = values.find(kCheckpointAliases);
  if (found == values.end()) return {};
  std::map<std::string, std::string> aliases;
  const auto refuse = [] {
    throw DistributedError(absl::StatusCode::kDataLoss,
                           std::string("the checkpoint's value ") + kCheckpointAliases + " has no names of tensors");
  };
  const auto [json, why] = ParseJson(found->second);
  if (!json.is_object()) refuse();
  for (const auto& [alias, name] : json.items()) {
    if (!name.is_string()) refuse();
    aliases[alias] = name.get<std::string>();
  }
  return aliases;
}

}  // namespace cohort::trainer
