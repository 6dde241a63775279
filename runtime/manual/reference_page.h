// A program's page of reference in Markdown.
#pragma once

#include <string>

#include "cohort/runtime/manual/command.h"

namespace cohort::runtime {

// Pure.
std::string ReferencePage(const ManualCommand& program);

}  // namespace cohort::runtime
