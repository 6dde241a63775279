// Makes a rank's Python tell its stacks when it is asked, without its program's doing: see README.md.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// The signal that asks: SIGRTMAX - 7, which libraries leave alone.
int StackSignal();

class PythonHook {
 public:
  // No hook: where it can't be made, the rank does without.
  PythonHook() = default;
  static PythonHook Make();

  bool valid() const { return file_.valid(); }
  // Adds the variables by which Pythons of the rank find it.
  void AddTo(std::vector<std::string>* environment) const;
  // The processes that said that they answer, and do: they live and catch the signal, and the rank's file is open.
  std::vector<pid_t> Listeners() const;

  // The length of what was written to the file.
  off_t size() const;
  // The text from `begin` on, `most` bytes of it.
  std::string Read(off_t begin, size_t most) const;
  // The memory of stacks that were read is given back when it is much. The listeners stay known.
  void Trim() const;

 private:
  static constexpr off_t kKeep = 4 << 20;

  runtime::FileDescriptor file_;
};

// A zip file with one file in it, not compressed. Pure.
std::string StoredZip(const std::string& name, const std::string& content);

}  // namespace cohort::launcher
