// Finds the Python that a process runs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "cohort/launcher/agent/stacks/process_memory.h"

namespace cohort::launcher {

struct PythonPlace {
  uint64_t runtime = 0;  // the address of _PyRuntime
  uint64_t version = 0;  // as PY_VERSION_HEX, of its file's name where nothing else tells; 0: not known
};

// The Python in a process: its program, or libpython. Nothing where there is none, or it may not be read.
std::optional<PythonPlace> FindPython(pid_t pid, const ProcessMemory& memory);

// Whether a program or library of the process has the name of a Python: also where its memory may not be read.
bool RunsPython(pid_t pid);

}  // namespace cohort::launcher
