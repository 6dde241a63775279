// The names of modules that wrap others. In checkpoints parameters have the same names with and without them.
#pragma once

#include <string>

namespace cohort::trainer {

inline constexpr const char* kFsdpWrapped = "_fsdp_wrapped_module";
inline constexpr const char* kCheckpointWrapped = "_checkpoint_wrapped_module";

// Turns "block0._fsdp_wrapped_module.up.weight" into "block0.up.weight".
inline std::string UnwrappedName(std::string name) {
  for (const char* wrapper : {kFsdpWrapped, kCheckpointWrapped}) {
    const std::string part = std::string(wrapper) + ".";
    for (size_t at = name.find(part); at != std::string::npos; at = name.find(part)) name.erase(at, part.size());
  }
  return name;
}

}  // namespace cohort::trainer
