// Agents as child processes on this machine.
#pragma once

#include "cohort/launcher/spawn/spawner.h"

namespace cohort::launcher {

class LocalSpawner : public Spawner {
 public:
  explicit LocalSpawner(const Options&) {}
  absl::StatusOr<AgentProcess> Spawn(int index, const std::string& host) override;
};

}  // namespace cohort::launcher
