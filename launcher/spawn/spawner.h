// Starts agents on nodes. A spawner is one file and one line in spawners.def.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "launcher/base/unique_fd.h"

namespace cohort::launcher {

// A process here through which an agent is reached: the agent itself, or the ssh or srun that carries it.
struct AgentProcess {
  pid_t pid = -1;
  UniqueFd input;   // v1::ToNode messages; closing it ends the agent
  UniqueFd output;  // v1::FromNode messages
};

class Spawner {
 public:
  virtual ~Spawner() = default;
  // Starts the agent of node `index`, called `node`. Call from the main thread, which must live as long as the agents:
  // they end with it. kResourceExhausted or kInternal with the cause.
  virtual absl::StatusOr<AgentProcess> Spawn(int index, const std::string& node) = 0;
};

// The spawner of that name in spawners.def; kNotFound otherwise.
absl::StatusOr<std::unique_ptr<Spawner>> MakeSpawner(std::string_view name);

}  // namespace cohort::launcher
