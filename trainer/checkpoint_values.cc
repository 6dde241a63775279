#include "trainer/checkpoint_values.h"

#include <charconv>
#include <system_error>

#include "trainer/error.h"

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

}  // namespace cohort::trainer
