// A child process whose standard streams are pipes to this one.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

struct PipedProcess {
  pid_t pid = -1;  // the caller waits for it
  runtime::FileDescriptor input;
  runtime::FileDescriptor output;
  runtime::FileDescriptor error;  // empty: it writes to our own standard error
};

inline constexpr int kInheritedDescriptor = 3;

struct PipedProcessOptions {
  std::string program = "";  // the file to execute, if it is not the first argument
  bool error_pipe = false;
  int death_signal = 0;       // the signal that it gets when the thread that started it ends; 0: none
  int inherited = -1;         // a descriptor that the child gets too, as kInheritedDescriptor; -1: none
  bool keep_blocked = false;  // blocked signals stay so: a program that handles signals itself loses none
  // Runs in a copy of this process instead of a program and returns the exit status. This process must have no threads.
  // Signal handlers and the limit on open files stay as they are.
  std::function<int()> run = nullptr;
};

// Starts `arguments[0]`, looked up in PATH unless it has a slash. It has its own process group: Ctrl-C is for us, and
// we tell our children. No signal is blocked (but see keep_blocked), the limit on open files is the user's, and only
// its standard streams, and what it inherits, are open. A program that cannot be executed ends with 127. Call it from
// the main thread. kResourceExhausted names the limit that was reached.
absl::StatusOr<PipedProcess> StartPiped(std::vector<std::string> arguments, const PipedProcessOptions& options);

}  // namespace cohort::launcher
