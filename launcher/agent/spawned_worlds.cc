#include "cohort/launcher/agent/spawned_worlds.h"

#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <string_view>
#include <utility>

#include "cohort/launcher/agent/rank/clone_child.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

std::string_view NameIn(std::string_view variable) { return variable.substr(0, variable.find('=') + 1); }

// The value of the last variable of that name ("PATH="), which wins.
std::string ValueOf(const std::vector<std::string>& environment, std::string_view name) {
  std::string value;
  for (const std::string& variable : environment) {
    if (variable.starts_with(name)) value = variable.substr(name.size());
  }
  return value;
}

// Variables by which the asking rank finds its own world.
bool IsOfAskersWorld(const std::string& variable) {
  return variable.starts_with("PMI_") || variable.starts_with("PMIX_") || variable.starts_with("MPI_LOCAL");
}

// Later ones win.
std::vector<std::string> Merged(const std::vector<std::string>& first, const std::vector<std::string>& second) {
  std::vector<std::string> merged;
  for (const std::string& variable : first) {
    const bool replaced = std::any_of(second.begin(), second.end(),
                                      [&](const std::string& its) { return NameIn(its) == NameIn(variable); });
    if (!replaced) merged.push_back(variable);
  }
  merged.insert(merged.end(), second.begin(), second.end());
  return merged;
}

std::string Absolute(const std::string& directory, const std::string& base) {
  if (directory.empty()) return base;
  return directory.starts_with('/') ? directory : base + "/" + directory;
}

std::string EndOf(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const char* const name = ::sigabbrev_np(WTERMSIG(wait_status));
    return std::string("was killed by ") +
           (name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(WTERMSIG(wait_status)));
  }
  return "exited with code " + std::to_string(WEXITSTATUS(wait_status));
}

int64_t ProcessesOf(const SpawnRequest& request) {
  int64_t count = 0;
  for (const SpawnedProgram& program : request.programs) count += program.count;
  return count;
}

}  // namespace

SpawnedWorlds::~SpawnedWorlds() {
  *lives_ = false;
  loop_->Cancel(kill_timer_);
  for (const auto& world : worlds_) {
    Kill(world.get());
    loop_->Cancel(world->start_timer);
    for (const Process& process : world->processes) {
      if (process.process.exec_error.valid()) loop_->Unwatch(process.process.exec_error.get());
    }
  }
}

std::string SpawnedWorlds::NameOfRank(int local_rank) const {
  return "rank " + std::to_string(assignment_.placement().ranks(local_rank).rank());
}

std::string SpawnedWorlds::NameOf(const World& world, size_t index) const {
  const Process& process = world.processes[index];
  return "process " + std::to_string(index) + " of " + std::to_string(world.processes.size()) + " that " +
         NameOfRank(world.asker.local_rank) + " has spawned (" + process.command.argv[0] + ", pid " +
         std::to_string(process.process.pid) + ")";
}

absl::Status SpawnedWorlds::Check(const SpawnRequest& request) const {
  int64_t processes = 0;
  for (const SpawnedProgram& program : request.programs) {
    if (program.argv.empty() || program.argv[0].empty()) return absl::InvalidArgumentError("it names no program");
    if (program.count < 1) return absl::InvalidArgumentError("it asks for fewer than one process");
    processes += program.count;
  }
  if (processes == 0) return absl::InvalidArgumentError("it asks for no process");
  for (const auto& world : worlds_) {
    processes += std::count_if(world->processes.begin(), world->processes.end(),
                               [](const Process& process) { return process.lives; });
  }
  if (processes <= kMostProcesses) return absl::OkStatus();
  return absl::ResourceExhaustedError(std::to_string(processes) + " spawned processes are more than the " +
                                      std::to_string(kMostProcesses) + " that one node runs");
}

void SpawnedWorlds::Spawn(const Asker& asker, MpiWay way, const SpawnRequest& request, StoredValues* store,
                          SpawnDone done) {
  World* const world = worlds_.emplace_back(std::make_unique<World>()).get();
  world->number = next_++;
  world->asker = asker;
  world->done = std::move(done);
  absl::Status status = Check(request);
  if (status.ok()) status = Prepare(world, way, request, store);
  if (status.ok()) status = Start(world, request);
  if (world->mpi != nullptr) world->mpi->CloseInherited();
  if (!status.ok()) return FinishStart(world, status);
  world->start_timer = loop_->After(kExecTimeout, [this, world] {
    world->start_timer = 0;
    FinishStart(world, ExecIsLate(world->processes[0].command, kExecTimeout));
  });
}

// The new world has one node, and the ranks that were asked for.
absl::Status SpawnedWorlds::Prepare(World* world, MpiWay way, const SpawnRequest& request, StoredValues* store) {
  const auto count = static_cast<uint32_t>(ProcessesOf(request));
  v1::Assignment& its = world->assignment;
  const std::string node = std::to_string(assignment_.placement().node());
  *its.mutable_job() = assignment_.job();
  its.mutable_job()->set_job_id(assignment_.job().job_id() + "-" + std::to_string(assignment_.epoch()) + "." + node +
                                "." + std::to_string(world->number));
  its.mutable_job()->set_serves_pmi1(way == MpiWay::kPmi1);
  its.mutable_job()->set_pmix(way == MpiWay::kPmix ? v1::JobSpec::PMIX_REQUIRED : v1::JobSpec::PMIX_NONE);
  its.mutable_job()->clear_programs();
  its.set_epoch(1);
  its.set_world_size(count);
  v1::Node& one = *its.add_nodes();
  one.set_name(assignment_.nodes(static_cast<int>(assignment_.placement().node())).name());
  one.set_rank_count(count);
  uint32_t first = 0;
  for (const SpawnedProgram& program : request.programs) {
    v1::RankSpan& span = *its.mutable_job()->add_programs()->add_ranks();
    span.set_first(first);
    first += static_cast<uint32_t>(program.count);
    span.set_last(first - 1);
  }
  for (uint32_t i = 0; i < count; ++i) {
    v1::RankPlacement& rank = *its.mutable_placement()->add_ranks();
    rank.set_rank(i);
    rank.set_local_rank(i);
  }
  world->name = MpiService::WorldOf(its);
  world->mpi = std::make_unique<MpiService>(
      loop_, its,
      MpiService::Callbacks{
          .ask = [](const v1::VariableRequest&) {},
          .on_notice = callbacks_.on_notice,
          .on_abort =
              [this, world](int index, int code) {
                Fail(world, static_cast<size_t>(index), "has called MPI_Abort with " + std::to_string(code), code);
              },
          .on_stuck =
              [this, world](int index, const std::string& why) {
                Fail(world, static_cast<size_t>(index), "was ended among its own world: " + why, std::nullopt);
              },
          .on_spawn =
              [this, world, store](int index, MpiWay its_way, const SpawnRequest& its_request, SpawnDone done) {
                Spawn({world->asker.local_rank, world->name, index}, its_way, its_request, store, std::move(done));
              }},
      MpiDelays(), MpiService::Spawned{store, request.values, world->asker.world, world->asker.rank});
  return world->mpi->Start([this, world](PmixEndpoint::Job job, PmixEndpoint::Handler handler) {
    if (!folder_.empty()) job.folder = folder_ + "/spawned-" + std::to_string(world->number);
    return StartPmixEndpoint(std::move(job), std::move(handler));
  });
}

absl::Status SpawnedWorlds::Start(World* world, const SpawnRequest& request) {
  std::vector<std::string> base = callbacks_.environment_of(world->asker.local_rank);
  std::erase_if(base, IsOfAskersWorld);
  const std::string search = ValueOf(base, "PATH=");
  RankOutput::Options output;
  output.rank = assignment_.placement().ranks(world->asker.local_rank).rank();
  output.raw = assignment_.job().raw_output();
  output.on_line = callbacks_.on_line;
  for (const SpawnedProgram& program : request.programs) {
    const std::string directory = Absolute(program.directory, assignment_.job().working_directory());
    COHORT_ASSIGN_OR_RETURN(
        const Program found,
        FindProgram(program.argv[0], program.path.empty() ? search : program.path + ":" + search, directory, ""));
    for (int i = 0; i < program.count; ++i) {
      const size_t index = world->processes.size();
      Process& process = world->processes.emplace_back();
      process.command.argv = program.argv;
      process.command.path = found.path;
      process.command.environment =
          Merged(Merged(base, program.environment), world->mpi->EnvironmentOf(static_cast<int>(index)));
      process.command.working_directory = directory;
      process.command.inherited = world->mpi->InheritedBy(static_cast<int>(index));
      process.command.local_rank = world->asker.local_rank;
      process.command.cgroup = cgroup_->fd();
      COHORT_ASSIGN_OR_RETURN(process.process, StartRank(process.command));
      process.lives = true;
      sentinel_->AddGroup(process.process.pid);
      ++world->starting;
      loop_->Watch(process.process.exec_error.get(), EPOLLIN,
                   [this, world, index](uint32_t) { LookAtStart(world, index); });
      process.output = std::make_unique<RankOutput>(loop_, output, std::move(process.process.output),
                                                    std::move(process.process.error));
      if (paused_) process.output->Pause();
    }
  }
  return absl::OkStatus();
}

void SpawnedWorlds::LookAtStart(World* world, size_t index) {
  Process& its = world->processes[index];
  if (!its.process.exec_error.valid()) return;
  const std::optional<absl::Status> outcome = ExecOutcome(its.process, its.command);
  if (!outcome) return;
  loop_->Unwatch(its.process.exec_error.get());
  its.process.exec_error.Close();
  --world->starting;
  if (!outcome->ok()) return FinishStart(world, *outcome);
  if (world->starting == 0) FinishStart(world, absl::OkStatus());
}

void SpawnedWorlds::FinishStart(World* world, const absl::Status& status) {
  loop_->Cancel(std::exchange(world->start_timer, 0));
  const SpawnDone done = std::exchange(world->done, nullptr);
  if (!done) return;
  ReleaseExecuted();
  if (status.ok()) return done(world->name);
  callbacks_.on_notice("MPI_Comm_spawn of " + NameOfRank(world->asker.local_rank) +
                       " starts nothing: " + TextOf(status));
  Kill(world);
  ForgetLater();
  done(status);
}

void SpawnedWorlds::Kill(World* world) {
  for (Process& process : world->processes) {
    process.told = true;
    if (!process.lives) continue;
    ::kill(-process.process.pid, SIGKILL);
    ::kill(process.process.pid, SIGKILL);  // it may not have a group of its own yet
  }
}

void SpawnedWorlds::KillOf(int local_rank) {
  for (const auto& world : worlds_) {
    if (world->asker.local_rank == local_rank) Kill(world.get());
  }
}

// Once a world: what follows is a consequence.
void SpawnedWorlds::Fail(World* world, size_t index, const std::string& what, std::optional<int> exit_code) {
  if (world->processes[index].told) return;
  const std::string why = NameOf(*world, index) + " " + what;
  Kill(world);
  callbacks_.on_notice(why);
  callbacks_.on_failure(world->asker.local_rank, why, exit_code);
}

bool SpawnedWorlds::OnChildEnded(pid_t pid, int wait_status) {
  World* world = nullptr;
  size_t index = 0;
  for (const auto& each : worlds_) {
    for (size_t i = 0; i < each->processes.size(); ++i) {
      if (!each->processes[i].lives || each->processes[i].process.pid != pid) continue;
      world = each.get();
      index = i;
    }
  }
  if (world == nullptr) return false;
  LookAtStart(world, index);  // its end has told
  sentinel_->LeaderEnded(pid);
  world->processes[index].output->Drain(true);
  world->processes[index].lives = false;
  world->mpi->OnEnded(static_cast<int>(index));
  if (wait_status != 0) {
    const bool by_code = WIFEXITED(wait_status);
    Fail(world, index, EndOf(wait_status), by_code ? std::optional(WEXITSTATUS(wait_status)) : std::nullopt);
  } else {
    LookForInit(world->number, index);
  }
  ForgetLater();
  if (!any_lives()) callbacks_.on_all_ended();
  return true;
}

void SpawnedWorlds::OnSwept() {
  for (const auto& world : worlds_) {
    for (Process& process : world->processes) {
      if (!std::exchange(process.lives, false)) continue;
      sentinel_->LeaderEnded(process.process.pid);
      process.output->Drain(true);
    }
  }
}

// MPI_Comm_spawn waits for it. What it had said may still be on its way, and another cause shows first.
void SpawnedWorlds::LookForInit(uint64_t number, size_t index) {
  loop_->After(MpiDelays().cause_may_show, [this, lives = lives_, number, index] {
    if (!*lives) return;
    for (const auto& world : worlds_) {
      if (world->number != number || world->mpi->UseOf(static_cast<int>(index)) != MpiUse::kNever) continue;
      Fail(world.get(), index, "has ended without MPI_Init, for which MPI_Comm_spawn waits", std::nullopt);
    }
  });
}

bool SpawnedWorlds::any_lives() const {
  return std::any_of(worlds_.begin(), worlds_.end(), [](const auto& world) {
    return std::any_of(world->processes.begin(), world->processes.end(),
                       [](const Process& process) { return process.lives; });
  });
}

void SpawnedWorlds::Stop(std::chrono::milliseconds grace) {
  for (const auto& world : worlds_) {
    for (Process& process : world->processes) {
      if (process.lives && !std::exchange(process.told, true)) ::kill(-process.process.pid, SIGTERM);
    }
  }
  loop_->Cancel(std::exchange(kill_timer_, 0));
  kill_timer_ = loop_->After(grace, [this] {
    kill_timer_ = 0;
    for (const auto& world : worlds_) Kill(world.get());
  });
}

void SpawnedWorlds::Pause() {
  paused_ = true;
  for (const auto& world : worlds_) {
    for (const Process& process : world->processes) {
      if (process.output != nullptr) process.output->Pause();
    }
  }
}

void SpawnedWorlds::Resume() {
  paused_ = false;
  for (const auto& world : worlds_) {
    for (const Process& process : world->processes) {
      if (process.output != nullptr) process.output->Resume();
    }
  }
}

// Its caller may be one of those worlds, whose process has just ended.
void SpawnedWorlds::ForgetLater() {
  loop_->After(std::chrono::milliseconds(0), [this, lives = lives_] {
    if (*lives) Forget();
  });
}

void SpawnedWorlds::Forget() {
  const auto ended = [](const std::unique_ptr<World>& world) {
    return !world->done && std::none_of(world->processes.begin(), world->processes.end(),
                                        [](const Process& process) { return process.lives; });
  };
  for (size_t count = static_cast<size_t>(std::count_if(worlds_.begin(), worlds_.end(), ended)); count > kMostEnded;
       --count) {
    worlds_.erase(std::find_if(worlds_.begin(), worlds_.end(), ended));
  }
}

}  // namespace cohort::launcher
