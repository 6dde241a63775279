#include "cohort/launcher/spawn/remote_spawner.h"

#include <csignal>
#include <utility>

#include "cohort/launcher/agent/agent.h"
#include "cohort/launcher/base/piped_process.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {

absl::StatusOr<AgentProcess> RemoteSpawner::Spawn(int index, const std::string& host) {
  const std::vector<std::string> command =
      command_(options_, OwnPath(), host, {"agent", "--node=" + std::to_string(index), kAgentPreambleArgument});
  COHORT_ASSIGN_OR_RETURN(PipedProcess process, StartPiped(command, {.error_pipe = true, .death_signal = SIGTERM}));
  return AgentProcess{.pid = process.pid,
                      .input = std::move(process.input),
                      .output = std::move(process.output),
                      .error = std::move(process.error),
                      .preamble = kAgentPreamble};
}

}  // namespace cohort::launcher
