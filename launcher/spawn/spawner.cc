#include "cohort/launcher/spawn/spawner.h"

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/agent.h"
#include "cohort/launcher/base/piped_process.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/spawn/blaunch_command.h"
#include "cohort/launcher/spawn/local_spawner.h"
#include "cohort/launcher/spawn/remote_command.h"
#include "cohort/launcher/spawn/srun_command.h"
#include "cohort/launcher/spawn/ssh_command.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

// Agents on other nodes, each behind a command of its own (ssh, srun, ...) whose streams are the agent's. The end of
// either ends the other: the far end closes the agent's standard input when the command or the connection is gone, and
// the agent then kills its ranks.
class RemoteSpawner final : public Spawner {
 public:
  // `options` must outlive it.
  RemoteSpawner(const Options& options, RemoteCommand* command) : options_(options), command_(command) {}
  absl::StatusOr<AgentProcess> Spawn(int index, const std::string& host) override {
    const std::vector<std::string> command =
        command_(options_, OwnPath(), host, {"agent", "--node=" + std::to_string(index), kAgentPreambleArgument});
    COHORT_ASSIGN_OR_RETURN(PipedProcess process, StartPiped(command, {.error_pipe = true, .death_signal = SIGTERM}));
    return AgentProcess{.pid = process.pid,
                        .input = std::move(process.input),
                        .output = std::move(process.output),
                        .error = std::move(process.error),
                        .preamble = kAgentPreamble};
  }

 private:
  const Options& options_;
  RemoteCommand* command_;
};

}  // namespace

std::string SpawnerName(SpawnerKind kind) {
  switch (kind) {
#define COHORT_SPAWNER(known, name, Class) \
  case SpawnerKind::known:                 \
    return name;
#define COHORT_REMOTE_SPAWNER COHORT_SPAWNER
#include "cohort/launcher/spawn/spawners.def"
#undef COHORT_REMOTE_SPAWNER
#undef COHORT_SPAWNER
  }
  return "";
}

std::unique_ptr<Spawner> MakeSpawner(SpawnerKind kind, const Options& options) {
  switch (kind) {
#define COHORT_SPAWNER(known, name, Class) \
  case SpawnerKind::known:                 \
    return std::make_unique<Class>(options);
#define COHORT_REMOTE_SPAWNER(known, name, command) \
  case SpawnerKind::known:                          \
    return std::make_unique<RemoteSpawner>(options, &command);
#include "cohort/launcher/spawn/spawners.def"
#undef COHORT_REMOTE_SPAWNER
#undef COHORT_SPAWNER
  }
  return nullptr;
}

}  // namespace cohort::launcher
