// The stacks of the Python threads of a process, read from its memory while it goes on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort::launcher {

struct PythonFrame {
  std::string file;
  int line = 0;  // 0: not known
  std::string function;
  bool operator==(const PythonFrame&) const = default;
};

struct PythonThread {
  bool is_main = false;
  bool cut = false;                 // there are more frames
  std::vector<PythonFrame> frames;  // innermost first; none: it runs no Python
  bool operator==(const PythonThread&) const = default;
};

// Reads the threads of a process, the latest first; `main_only`: of the main one alone. Nothing where the process runs
// no Python, or one of a version whose memory is not known, or it may not be read. Takes below a millisecond for a
// usual thread. A thread that runs meanwhile may give a stack that mixes two moments.
std::optional<std::vector<PythonThread>> ReadPythonThreads(pid_t pid, bool main_only);

}  // namespace cohort::launcher
