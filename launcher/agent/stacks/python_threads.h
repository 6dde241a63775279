// The stacks of the Python threads of a process, read from its memory while it goes on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
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

// The Python of a process, found once to be read again and again: finding it takes longer where many libraries are
// loaded.
class PythonWatch {
 public:
  // Null where the process runs no Python, or one of a version whose memory is not known, or it may not be read.
  static std::unique_ptr<PythonWatch> Of(pid_t pid);
  ~PythonWatch();

  // As ReadPythonThreads.
  std::vector<PythonThread> Threads(bool main_only) const;
  // Whether its garbage collector is at work. Nothing: that is not known of this version.
  std::optional<bool> CollectsGarbage() const;

 private:
  struct Python;
  explicit PythonWatch(std::unique_ptr<Python> python);
  const std::unique_ptr<Python> python_;
};

// Reads the threads of a process, the latest first; `main_only`: of the main one alone. Nothing where the process runs
// no Python, or one of a version whose memory is not known, or it may not be read. Takes below a millisecond for a
// usual thread. A thread that runs meanwhile may give a stack that mixes two moments.
std::optional<std::vector<PythonThread>> ReadPythonThreads(pid_t pid, bool main_only);

}  // namespace cohort::launcher
