// The line of an instruction, by the table of its code object. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "cohort/launcher/agent/stacks/python_layout.h"

namespace cohort::launcher {

// Returns the line of the instruction that begins `offset` bytes into the code whose first line is `first`; 0: it has
// none, or the table is damaged. A negative offset stands for code that has not begun: its first line.
int LineOfInstruction(LineTable form, std::string_view table, int first, int64_t offset);

}  // namespace cohort::launcher
