// Agents on other nodes, each behind a command of its own (ssh, srun, ...) whose streams are the agent's. The end of
// either ends the other: the far end closes the agent's standard input when the command or the connection is gone, and
// the agent then kills its ranks.
#pragma once

#include <string>

#include "cohort/launcher/spawn/remote_command.h"
#include "cohort/launcher/spawn/spawner.h"

namespace cohort::launcher {

class RemoteSpawner : public Spawner {
 public:
  // `options` must outlive it.
  RemoteSpawner(const Options& options, RemoteCommand* command) : options_(options), command_(command) {}
  absl::StatusOr<AgentProcess> Spawn(int index, const std::string& host) override;

 private:
  const Options& options_;
  RemoteCommand* command_;
};

}  // namespace cohort::launcher
