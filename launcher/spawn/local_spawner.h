// Agents as child processes on this machine.
#pragma once

#include <optional>

#include "cohort/launcher/spawn/spawner.h"

namespace cohort::launcher {

class LocalSpawner : public Spawner {
 public:
  explicit LocalSpawner(const Options& options) : options_(options) {}
  absl::StatusOr<AgentProcess> Spawn(int index, const std::string& host) override;

 private:
  const Options& options_;
};

// Starts the only agent of a job as a copy of this process, which saves loading the program a second time. Call it
// before this process has threads, gRPC's among them.
// Nothing where there are threads already, or no process can be made: MakeSpawner(kLocal) then starts the agent.
std::optional<AgentProcess> ForkOnlyAgent(const Options& options);

}  // namespace cohort::launcher
