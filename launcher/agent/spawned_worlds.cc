#include "cohort/launcher/agent/spawned_worlds.h"

#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <utility>

#include "cohort/launcher/agent/lines/shortened_line.h"
#include "cohort/launcher/agent/rank/clone_child.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

bool HasEnded(const std::unique_ptr<SpawnedWorld>& world) { return !world->done && !world->FirstLiving(); }

// Whether the request can be served beside `living` processes.
absl::Status Check(const SpawnRequest& request, int living) {
  int64_t processes = 0;
  for (const SpawnedProgram& program : request.programs) {
    if (program.argv.empty() || program.argv[0].empty()) return absl::InvalidArgumentError("it names no program");
    if (program.count < 1) return absl::InvalidArgumentError("it asks for fewer than one process");
    processes += program.count;
  }
  if (processes == 0) return absl::InvalidArgumentError("it asks for no process");
  processes += living;
  if (processes <= SpawnedWorlds::kMostProcesses) return absl::OkStatus();
  return absl::ResourceExhaustedError(std::to_string(processes) + " spawned processes are more than the " +
                                      std::to_string(SpawnedWorlds::kMostProcesses) + " that one node runs");
}

}  // namespace

SpawnedWorlds::~SpawnedWorlds() {
  *lives_ = false;
  loop_->Cancel(kill_timer_);
  for (const auto& world : worlds_) {
    world->Kill();
    loop_->Cancel(world->start_timer);
    for (const SpawnedWorld::Process& process : world->processes) {
      if (process.process.exec_error.valid()) loop_->Unwatch(process.process.exec_error.get());
    }
  }
}

SpawnedWorld* SpawnedWorlds::WorldOf(const std::string& name) const {
  if (name.empty()) return nullptr;  // as those are that were refused
  const auto found =
      std::find_if(worlds_.begin(), worlds_.end(), [&name](const auto& world) { return world->name == name; });
  return found == worlds_.end() ? nullptr : found->get();
}

std::string SpawnedWorlds::NameOf(const Asker& asker) const {
  const std::string rank = "rank " + std::to_string(assignment_.placement().ranks(asker.local_rank).rank());
  const SpawnedWorld* const world = WorldOf(asker.world);
  if (world == nullptr) return rank;
  const pid_t pid = world->processes[static_cast<size_t>(asker.rank)].process.pid;
  return "process " + std::to_string(asker.rank) + " of " + rank + " (pid " + std::to_string(pid) + ")";
}

MpiUse SpawnedWorlds::UseOf(const Asker& asker) const {
  const SpawnedWorld* const world = WorldOf(asker.world);
  return world == nullptr ? callbacks_.use_of(asker.local_rank) : world->UseOf(static_cast<size_t>(asker.rank));
}

void SpawnedWorlds::Tell(int local_rank, const std::string& text) {
  int& told = notices_[static_cast<size_t>(local_rank)];
  if (told > kMostNotices) return;
  const bool is_last = ++told > kMostNotices;
  callbacks_.on_notice(is_last ? "more lines on processes that " + NameOf(Asker{local_rank, "", 0}) +
                                     " has spawned are left out"
                               : ShortenMiddle(text, kMostNoticeBytes));
}

void SpawnedWorlds::Spawn(const Asker& asker, MpiWay way, const SpawnRequest& request, StoredValues* store,
                          SpawnDone done) {
  const std::string asker_name = NameOf(asker);
  SpawnedWorld* const world = worlds_.emplace_back(std::make_unique<SpawnedWorld>()).get();
  world->number = next_++;
  world->asker = asker;
  world->asker_name = asker_name;
  world->done = std::move(done);
  const int living =
      std::accumulate(worlds_.begin(), worlds_.end(), 0, [](int sum, const auto& its) { return sum + its->living(); });
  absl::Status status = stopped_ ? absl::FailedPreconditionError("the job is ending") : Check(request, living);
  if (status.ok()) status = Prepare(world, way, request, store);
  if (status.ok()) status = Start(world);
  if (world->mpi != nullptr) world->mpi->CloseInherited();
  if (!status.ok()) return FinishStart(world, status);
  world->start_timer = loop_->After(kExecTimeout, [this, world] {
    world->start_timer = 0;
    const auto late = std::find_if(world->processes.begin(), world->processes.end(),
                                   [](const auto& process) { return process.process.exec_error.valid(); });
    FinishStart(world, ExecIsLate(late->command, kExecTimeout));
  });
}

absl::Status SpawnedWorlds::Prepare(SpawnedWorld* world, MpiWay way, const SpawnRequest& request, StoredValues* store) {
  world->MakeAssignment(assignment_, way, request);
  const std::string before = "among the " + std::to_string(world->assignment.world_size()) + " processes that " +
                             world->asker_name + " has spawned: ";
  world->mpi = std::make_unique<MpiService>(
      loop_, world->assignment,
      MpiService::Callbacks{
          .ask = [](const v1::VariableRequest&) {},
          .on_notice = [this, world, before](const std::string& text) { Tell(world->asker.local_rank, before + text); },
          .on_left = [](const std::string&) {},  // nobody tells it of failures
          .on_abort =
              [this, world](int index, int code) {
                Fail(world, static_cast<size_t>(index), "has called MPI_Abort with " + std::to_string(code), code);
              },
          .on_stuck =
              [this, world](int index, const std::string& why) {
                Fail(world, static_cast<size_t>(index), "was ended; in its own world " + why);
              },
          .on_spawn =
              [this, world, store](int index, MpiWay its_way, const SpawnRequest& its_request, SpawnDone done) {
                Spawn({world->asker.local_rank, world->name, index}, its_way, its_request, store, std::move(done));
              }},
      delays_, MpiService::Spawned{store, request.values, world->asker.world, world->asker.rank});
  COHORT_RETURN_IF_ERROR(world->mpi->Start([this, world](PmixEndpoint::Job job, PmixEndpoint::Handler handler) {
    const OpenMpiFolders its = folders_.Within("spawned-" + std::to_string(world->number));
    job.folder = its.files;
    job.memory_folder = its.memory;
    return StartPmixEndpoint(std::move(job), std::move(handler));
  }));
  return world->MakeCommands(request, callbacks_.environment_of(world->asker.local_rank), cgroup_->fd());
}

absl::Status SpawnedWorlds::Start(SpawnedWorld* world) {
  RankOutput::Options output;
  output.rank = assignment_.placement().ranks(world->asker.local_rank).rank();
  output.log_rate = assignment_.job().log_rate();
  output.raw = assignment_.job().raw_output();
  output.on_line = callbacks_.on_line;
  for (size_t i = 0; i < world->processes.size(); ++i) {
    SpawnedWorld::Process& process = world->processes[i];
    COHORT_ASSIGN_OR_RETURN(process.process, StartRank(process.command));
    process.lives = true;
    sentinel_->AddGroup(process.process.pid);
    ++world->starting;
    loop_->Watch(process.process.exec_error.get(), EPOLLIN, [this, world, i](uint32_t) { LookAtStart(world, i); });
    process.output = std::make_unique<RankOutput>(loop_, output, std::move(process.process.output),
                                                  std::move(process.process.error));
    if (paused_) process.output->Pause();
  }
  return absl::OkStatus();
}

void SpawnedWorlds::LookAtStart(SpawnedWorld* world, size_t index) {
  SpawnedWorld::Process& its = world->processes[index];
  if (!its.process.exec_error.valid()) return;
  const std::optional<absl::Status> outcome = ExecOutcome(its.process, its.command);
  if (!outcome) return;
  loop_->Unwatch(its.process.exec_error.get());
  its.process.exec_error.Close();
  --world->starting;
  if (!outcome->ok()) return FinishStart(world, *outcome);
  if (world->starting == 0) FinishStart(world, absl::OkStatus());
}

void SpawnedWorlds::FinishStart(SpawnedWorld* world, const absl::Status& status) {
  loop_->Cancel(std::exchange(world->start_timer, 0));
  const SpawnDone done = std::exchange(world->done, nullptr);
  if (!done) return;
  ReleaseExecuted();
  if (status.ok()) {
    Later(delays_.wait_is_told, world->name, [this](SpawnedWorld* its) { TellMissingInit(*its); });
    return done(world->name);
  }
  Tell(world->asker.local_rank, "MPI_Comm_spawn of " + world->asker_name + " starts nothing: " + TextOf(status));
  world->Kill();
  Forget();
  done(status);
}

void SpawnedWorlds::KillOf(int local_rank) {
  for (const auto& world : worlds_) {
    if (world->asker.local_rank == local_rank) world->Kill();
  }
}

// Once a world: what follows is a consequence. It is told however much else was.
void SpawnedWorlds::Fail(SpawnedWorld* world, size_t index, const std::string& what, std::optional<int> exit_code,
                         int signal) {
  if (world->processes[index].told) return;
  const std::string why = ShortenMiddle(world->NameOf(index), kMostNoticeBytes) + " " + what;
  world->Kill();
  callbacks_.on_notice(why);
  callbacks_.on_failure(world->asker.local_rank, why, exit_code, signal);
}

bool SpawnedWorlds::OnChildEnded(pid_t pid, int wait_status) {
  SpawnedWorld* world = nullptr;
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
  if (WIFSIGNALED(wait_status)) {
    Fail(world, index, "was killed by " + SignalName(WTERMSIG(wait_status)), std::nullopt, WTERMSIG(wait_status));
  } else if (WEXITSTATUS(wait_status) != 0) {
    Fail(world, index, "exited with code " + std::to_string(WEXITSTATUS(wait_status)), WEXITSTATUS(wait_status));
  } else {
    // Its last words to MPI may still be on their way, and another cause shows first.
    Later(delays_.cause_may_show, world->name, [this, index](SpawnedWorld* its) { LookAtEnd(its, index); });
  }
  Forget();
  if (!any_lives()) callbacks_.on_all_ended();
  return true;
}

void SpawnedWorlds::OnSwept() {
  for (const auto& world : worlds_) {
    for (SpawnedWorld::Process& process : world->processes) {
      if (!std::exchange(process.lives, false)) continue;
      sentinel_->LeaderEnded(process.process.pid);
      process.output->Drain(true);
    }
  }
}

void SpawnedWorlds::Later(std::chrono::nanoseconds delay, const std::string& name,
                          std::function<void(SpawnedWorld*)> then) {
  loop_->After(delay, [this, lives = lives_, name, then = std::move(then)] {
    if (!*lives) return;
    if (SpawnedWorld* const world = WorldOf(name); world != nullptr) then(world);
  });
}

void SpawnedWorlds::TellMissingInit(const SpawnedWorld& world) {
  if (UseOf(world.asker) != MpiUse::kInside) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(delays_.wait_is_told).count();
  for (size_t i = 0; i < world.processes.size(); ++i) {
    if (!world.processes[i].lives || world.UseOf(i) != MpiUse::kNever) continue;
    return Tell(world.asker.local_rank,
                "MPI_Comm_spawn has waited " + std::to_string(seconds) + " s for MPI_Init of " + world.NameOf(i));
  }
}

void SpawnedWorlds::LookAtEnd(SpawnedWorld* world, size_t index) {
  const MpiUse use = world->UseOf(index);
  const bool waited_for = UseOf(world->asker) == MpiUse::kInside;
  if (use == MpiUse::kNever && waited_for) {
    Fail(world, index, "has ended without MPI_Init, for which MPI_Comm_spawn waits");
  }
  if (use != MpiUse::kLeft) return;
  if (waited_for) Fail(world, index, "has ended without MPI_Finalize");
  EndThoseThatWaitFor({world->asker.local_rank, world->name, static_cast<int>(index)});
}

void SpawnedWorlds::OnAskerEnded(int local_rank) {
  loop_->After(delays_.cause_may_show, [this, lives = lives_, local_rank] {
    if (!*lives || callbacks_.use_of(local_rank) != MpiUse::kLeft) return;
    const auto number = static_cast<int>(assignment_.placement().ranks(local_rank).rank());
    EndThoseThatWaitFor({local_rank, MpiService::WorldOf(assignment_), number});
  });
}

void SpawnedWorlds::EndThoseThatWaitFor(const Asker& asker) {
  const std::string why =
      "was ended: it can't go on in MPI without " + NameOf(asker) + ", which has ended without MPI_Finalize";
  for (const auto& world : worlds_) {
    if (world->asker.world != asker.world || world->asker.rank != asker.rank) continue;
    for (size_t i = 0; i < world->processes.size(); ++i) {
      if (world->processes[i].lives && world->UseOf(i) == MpiUse::kInside) Fail(world.get(), i, why);
    }
  }
}

void SpawnedWorlds::OnRanksGone() {
  loop_->After(delays_.wait_is_told, [this, lives = lives_] {
    if (!*lives) return;
    for (const auto& world : worlds_) {
      const std::optional<size_t> living = world->FirstLiving();
      if (!living) continue;
      return Tell(world->asker.local_rank, "all ranks of " + world->assignment.nodes(0).name() +
                                               " have ended, and the job waits for " + world->NameOf(*living));
    }
  });
}

bool SpawnedWorlds::any_lives() const {
  return std::any_of(worlds_.begin(), worlds_.end(),
                     [](const auto& world) { return world->FirstLiving().has_value(); });
}

void SpawnedWorlds::Stop(std::chrono::milliseconds grace) {
  stopped_ = true;
  for (const auto& world : worlds_) {
    for (SpawnedWorld::Process& process : world->processes) {
      if (process.lives && !std::exchange(process.told, true)) ::kill(-process.process.pid, SIGTERM);
    }
  }
  loop_->Cancel(std::exchange(kill_timer_, 0));
  kill_timer_ = loop_->After(grace, [this] {
    kill_timer_ = 0;
    for (const auto& world : worlds_) world->Kill();
  });
}

void SpawnedWorlds::Pause() {
  paused_ = true;
  for (const auto& world : worlds_) {
    for (const SpawnedWorld::Process& process : world->processes) {
      if (process.output != nullptr) process.output->Pause();
    }
  }
}

void SpawnedWorlds::Resume() {
  paused_ = false;
  for (const auto& world : worlds_) {
    for (const SpawnedWorld::Process& process : world->processes) {
      if (process.output != nullptr) process.output->Resume();
    }
  }
}

// Later, since its caller may be one of those worlds, whose process has just ended.
void SpawnedWorlds::Forget() {
  loop_->After(std::chrono::milliseconds(0), [this, lives = lives_] {
    if (!*lives) return;
    auto ended = std::count_if(worlds_.begin(), worlds_.end(), HasEnded);
    for (; ended > static_cast<std::ptrdiff_t>(kMostEnded); --ended) {
      worlds_.erase(std::find_if(worlds_.begin(), worlds_.end(), HasEnded));
    }
  });
}

}  // namespace cohort::launcher
