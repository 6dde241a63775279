// Reading variables that other launchers set, and naming them in messages. Pure.
#pragma once

#include <optional>
#include <string>

#include "cohort/launcher/base/process_environment.h"

namespace cohort::launcher {

// Empty where it is not set.
std::string ValueOf(const VariableLookup& variable, const char* name);
// Nothing where it is not set, or no whole number from 0 on.
std::optional<int> NumberOf(const VariableLookup& variable, const char* name);
// "WORLD_SIZE=2", with a long value shortened.
std::string Says(const VariableLookup& variable, const char* name);

}  // namespace cohort::launcher
