#include "cohort/launcher/spawn/local_spawner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/agent.h"
#include "cohort/launcher/agent/rank/rank_input_file.h"
#include "cohort/launcher/agent/watch/process_name.h"
#include "cohort/launcher/base/piped_process.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {

namespace {

AgentProcess ToAgent(PipedProcess process) {
  return {.pid = process.pid, .input = std::move(process.input), .output = std::move(process.output), .preamble = ""};
}

// A copy of a process has the locks of its other threads as they were, and not the threads.
bool HasThreads() {
  struct stat tasks{};
  constexpr nlink_t kOfOneThread = 3;
  return ::stat("/proc/self/task", &tasks) != 0 || tasks.st_nlink != kOfOneThread;
}

// In lists of processes it looks as one that was executed.
int RunCopiedAgent(bool has_input) {
  NameProcess("dlaunch", std::string_view("dlaunch\0agent\0--node=0", 22));
  std::string name = "dlaunch", input = kRankInputArgument;
  char* argv[] = {name.data(), input.data(), nullptr};
  return RunAgent(has_input ? 2 : 1, argv);
}

// Nobody in the background may read a terminal, and it is the shell's as well.
bool GivesInput(const Options& options) {
  return options.input == RankInputOption::kRedirected && ::isatty(STDIN_FILENO) == 0;
}

}  // namespace

absl::StatusOr<AgentProcess> LocalSpawner::Spawn(int index, const std::string&) {
  // The number only tells agents apart in lists of processes; the sentinel needs the room for its own name.
  std::vector<std::string> arguments = {"dlaunch", "agent", "--node=" + std::to_string(index)};
  const bool gives_input = index == 0 && GivesInput(options_);
  if (gives_input) arguments.push_back(kRankInputArgument);
  COHORT_ASSIGN_OR_RETURN(PipedProcess process,
                          StartPiped(std::move(arguments), {.program = "/proc/self/exe",
                                                            .death_signal = LauncherGoneSignal(),
                                                            .inherited = gives_input ? STDIN_FILENO : -1}));
  return ToAgent(std::move(process));
}

std::optional<AgentProcess> ForkOnlyAgent(const Options& options) {
  if (HasThreads()) return std::nullopt;
  const bool gives_input = GivesInput(options);
  absl::StatusOr<PipedProcess> process =
      StartPiped({}, {.death_signal = LauncherGoneSignal(), .inherited = gives_input ? STDIN_FILENO : -1, .run = [=] {
                        return RunCopiedAgent(gives_input);
                      }});
  if (!process.ok()) return std::nullopt;
  return ToAgent(*std::move(process));
}

}  // namespace cohort::launcher
