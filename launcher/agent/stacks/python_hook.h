// Makes a rank's Python tell its stacks when it is asked, without its program's doing: see README.md.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// The signal that asks: SIGRTMAX - 7, which libraries leave alone.
int StackSignal();

class PythonHook {
 public:
  // A process that has said that it answers.
  struct Listener {
    pid_t pid = 0;
    uint64_t main_thread = 0;  // as faulthandler names it; 0: it has not said
  };

  // No hook: where it can't be made, the rank does without.
  PythonHook() = default;
  static PythonHook Make();

  bool valid() const { return file_.valid(); }
  // Adds the variables by which Pythons of the rank find it.
  void AddTo(std::vector<std::string>* environment) const;
  // The processes that said that they answer, and do. Reads what the rank has written since the last call.
  std::vector<Listener> Listeners();
  // Whether the process, which has said so, still answers: it lives, the rank's file is open in it under the number
  // that it said, and it catches the signal.
  bool Catches(pid_t pid) const;
  // Whether a thread of it takes the signal. One that all threads block would wait for the next program that the
  // process executes, and kill that.
  static bool Takes(pid_t pid);

  // The length of what was written to the file.
  off_t size() const;
  // The text from `begin` on, `most` bytes of it.
  std::string Read(off_t begin, size_t most) const;
  // The memory of stacks that were read is given back when it is much. The listeners stay known.
  void Trim();

 private:
  static constexpr off_t kKeep = 4 << 20;

  struct Said {
    int fd = -1;
    uint64_t main_thread = 0;
  };

  void ReadHellos();
  void TakeHello(const std::string& line);

  runtime::FileDescriptor file_;
  off_t read_ = 0;              // of the file, for hellos
  std::map<pid_t, Said> said_;  // the latest word of each
};

// A zip file with one file in it, not compressed. Pure.
std::string StoredZip(const std::string& name, const std::string& content);

}  // namespace cohort::launcher
