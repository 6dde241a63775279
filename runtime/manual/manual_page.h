// A program's manual page of section 1.
#pragma once

#include <string>

#include "cohort/runtime/manual/command.h"

namespace cohort::runtime {

// In roff, with the man macros. Pure.
std::string ManualPage(const ManualCommand& program, const std::string& build);

}  // namespace cohort::runtime
