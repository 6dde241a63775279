// Agents on other hosts, each behind an ssh of its own whose streams are the agent's. The end of either ends the other:
// sshd closes the agent's standard input when the connection is gone, and the agent then kills its ranks.
#pragma once

#include <string>

#include "launcher/spawn/spawner.h"

namespace cohort::launcher {

class SshSpawner : public Spawner {
 public:
  explicit SshSpawner(const Options& options) : options_(options) {}
  absl::StatusOr<AgentProcess> Spawn(int index, const std::string& host) override;

 private:
  const Options& options_;
};

}  // namespace cohort::launcher
