#include "cohort/launcher/spawn/local_spawner.h"

#include <sys/stat.h>

#include <string_view>
#include <utility>

#include "cohort/launcher/agent/agent.h"
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
int RunCopiedAgent() {
  NameProcess("dlaunch", std::string_view("dlaunch\0agent\0--node=0", 22));
  char name[] = "dlaunch";
  char* argv[] = {name, nullptr};
  return RunAgent(1, argv);
}

}  // namespace

absl::StatusOr<AgentProcess> LocalSpawner::Spawn(int index, const std::string&) {
  // The number only tells agents apart in lists of processes; the sentinel needs the room for its own name.
  COHORT_ASSIGN_OR_RETURN(PipedProcess process,
                          StartPiped({"dlaunch", "agent", "--node=" + std::to_string(index)},
                                     {.program = "/proc/self/exe", .death_signal = LauncherGoneSignal()}));
  return ToAgent(std::move(process));
}

std::optional<AgentProcess> ForkOnlyAgent() {
  if (HasThreads()) return std::nullopt;
  absl::StatusOr<PipedProcess> process = StartPiped({}, {.death_signal = LauncherGoneSignal(), .run = RunCopiedAgent});
  if (!process.ok()) return std::nullopt;
  return ToAgent(*std::move(process));
}

}  // namespace cohort::launcher
