// Agents as child processes on this machine.
#pragma once

#include "launcher/spawn/spawner.h"

namespace cohort::launcher {

class LocalSpawner : public Spawner {
 public:
  absl::StatusOr<AgentProcess> Spawn(int index, const std::string& node) override;
};

}  // namespace cohort::launcher
