// Symbols of a program or library as a process has it in its memory. No file is opened: one on a server that is gone
// would hold its reader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/launcher/agent/stacks/process_memory.h"

namespace cohort::launcher {

// Returns the address of the dynamic symbol `name` of the 64-bit ELF file whose beginning lies at `begin`. Nothing
// where it has none of that name, or is no such file.
std::optional<uint64_t> FindLoadedSymbol(const ProcessMemory& memory, uint64_t begin, const std::string& name);

}  // namespace cohort::launcher
