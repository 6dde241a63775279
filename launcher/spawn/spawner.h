// Starts agents on nodes. A spawner is one file and one line in spawners.def.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cohort/launcher/options/options.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// A process here through which an agent is reached: the agent itself, or the ssh or srun that carries it.
struct AgentProcess {
  pid_t pid = -1;
  runtime::FileDescriptor input;       // v1::ToNode messages; closing it ends the agent
  runtime::FileDescriptor output;      // v1::FromNode messages
  runtime::FileDescriptor error = {};  // words for people; empty: they go where ours go
  // This comes before the first of them, after whatever a remote shell's start-up files print; empty: nothing does.
  std::string preamble;
};

class Spawner {
 public:
  virtual ~Spawner() = default;
  // Starts the agent of node `index` on `host`, as the source of nodes named it. Call from the main thread, which must
  // live as long as the agents: they end with it. kResourceExhausted or kInternal with the cause.
  virtual absl::StatusOr<AgentProcess> Spawn(int index, const std::string& host) = 0;
};

// A line of spawners.def.
enum class SpawnerKind {
#define COHORT_SPAWNER(kind, name, Class) kind,
#define COHORT_REMOTE_SPAWNER(kind, name, command) kind,
#include "cohort/launcher/spawn/spawners.def"
#undef COHORT_REMOTE_SPAWNER
#undef COHORT_SPAWNER
};

// "ssh"
std::string SpawnerName(SpawnerKind kind);

// `options` must outlive it.
std::unique_ptr<Spawner> MakeSpawner(SpawnerKind kind, const Options& options);

}  // namespace cohort::launcher
