#include "cohort/launcher/spawn/local_spawner.h"

#include <utility>

#include "cohort/launcher/agent/agent.h"
#include "cohort/launcher/base/piped_process.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {

absl::StatusOr<AgentProcess> LocalSpawner::Spawn(int index, const std::string&) {
  // The number only tells agents apart in lists of processes; the sentinel needs the room for its own name.
  COHORT_ASSIGN_OR_RETURN(PipedProcess process,
                          StartPiped({"dlaunch", "agent", "--node=" + std::to_string(index)},
                                     {.program = "/proc/self/exe", .death_signal = LauncherGoneSignal()}));
  return AgentProcess{
      .pid = process.pid, .input = std::move(process.input), .output = std::move(process.output), .preamble = ""};
}

}  // namespace cohort::launcher
