// A child process whose standard streams are pipes to this one.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

struct PipedProcess {
  pid_t pid = -1;  // the caller's to wait for
  runtime::FileDescriptor input;
  runtime::FileDescriptor output;
  runtime::FileDescriptor error;  // empty: it writes to our own standard error
};

struct PipedProcessOptions {
  std::string program = "";  // the file to execute, where it is another than the first argument
  bool error_pipe = false;
  int death_signal = 0;       // what it gets when the thread that started it ends; 0: nothing
  bool keep_blocked = false;  // what is blocked here stays so: a program that handles signals itself loses none
};

// Starts `arguments[0]`, looked up in PATH unless it has a slash, in a process group of its own (Ctrl-C is for us, who
// tell our children what it means), with no signal blocked (but see keep_blocked), the user's limit on open files and
// only its standard streams open. A program that can't be executed ends with 127. Call from the main thread.
// kResourceExhausted names the limit that is in the way.
absl::StatusOr<PipedProcess> StartPiped(std::vector<std::string> arguments, const PipedProcessOptions& options);

}  // namespace cohort::launcher
