#include "cohort/launcher/spawn/spawner.h"

#include "absl/status/status.h"
#include "cohort/launcher/spawn/blaunch_command.h"
#include "cohort/launcher/spawn/local_spawner.h"
#include "cohort/launcher/spawn/remote_spawner.h"
#include "cohort/launcher/spawn/srun_command.h"
#include "cohort/launcher/spawn/ssh_command.h"

namespace cohort::launcher {

absl::StatusOr<std::unique_ptr<Spawner>> MakeSpawner(std::string_view name, const Options& options) {
#define COHORT_SPAWNER(known, Class) \
  if (name == known) return std::unique_ptr<Spawner>(std::make_unique<Class>(options));
#define COHORT_REMOTE_SPAWNER(known, command) \
  if (name == known) return std::unique_ptr<Spawner>(std::make_unique<RemoteSpawner>(options, &command));
#include "cohort/launcher/spawn/spawners.def"
#undef COHORT_REMOTE_SPAWNER
#undef COHORT_SPAWNER
  return absl::NotFoundError("there is no way to start agents called '" + std::string(name) + "'");
}

}  // namespace cohort::launcher
