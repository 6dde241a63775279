// Runs many short commands side by side and collects their output.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cohort::launcher {

struct CommandResult {
  bool ended = false;   // false: it ran past the limit, was cancelled, or could not be started (`error` says why)
  int wait_status = 0;  // from waitpid, when it ended
  std::string output;   // the first MiB of each
  std::string error;
  std::optional<std::chrono::milliseconds> cancelled_after;  // if it was cancelled: time since its start
};

struct RunCommandsOptions {
  size_t at_once = 64;
  std::chrono::milliseconds limit = std::chrono::seconds(20);  // for each command
  // Called for each as it ends, on the calling thread; false cancels all others.
  std::function<bool(size_t index, const CommandResult& result)> on_end = nullptr;
  // Counts from the beginning. Before it nothing is cancelled, so that commands that end meanwhile are reported too.
  std::chrono::milliseconds cancels_after{0};
};

// Runs each command (looked up in PATH) with an empty standard input and returns their results in order. Blocks until
// all have ended or were killed, with their process groups; nothing of them is left. Call it from the main thread.
// SIGCHLD must be neither blocked nor ignored by others' waits: each child is waited for by its number.
std::vector<CommandResult> RunCommands(const std::vector<std::vector<std::string>>& commands,
                                       const RunCommandsOptions& options);

}  // namespace cohort::launcher
