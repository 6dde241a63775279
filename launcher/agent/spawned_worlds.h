// The processes that ranks of this node ask for while they run (MPI_Comm_spawn), in the agent's care as the ranks are.
//
//   rank ──its MPI library──► MpiService ──Spawn──► here: a world of its own, with an MpiService of its own ──► rank
//
// They run on the node of the rank that asked, and belong to it: what they print is shown as that rank's, and if one
// fails the rank fails, with the reason. Each leads a session of its own, in the ranks' cgroup and with their mark: the
// agent's sentinel and sweep find it. On the agent's event loop.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/mpi/mpi_service.h"
#include "cohort/launcher/agent/rank/rank_output.h"
#include "cohort/launcher/agent/rank/rank_process.h"
#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/sentinel.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class SpawnedWorlds {
 public:
  struct Callbacks {
    std::function<void(const v1::OutputLine&)> on_line;
    std::function<void(const std::string&)> on_notice;
    // One of its processes has failed: with that code, where it ended so.
    std::function<void(int local_rank, const std::string& why, std::optional<int> exit_code)> on_failure;
    // No process lives any more.
    std::function<void()> on_all_ended;
    // The variables that the rank itself was given.
    std::function<std::vector<std::string>(int local_rank)> environment_of;
  };
  // The process that asks: a rank of this node, or a process that it has spawned.
  struct Asker {
    int local_rank = 0;
    std::string world;  // the name of its world
    int rank = 0;       // in that
  };

  // All of it outlives this object. `folder`: the agent's, for files of Open MPI.
  SpawnedWorlds(EventLoop* loop, const v1::Assignment& assignment, Sentinel* sentinel, const Cgroup* cgroup,
                std::string folder, Callbacks callbacks)
      : loop_(loop),
        assignment_(assignment),
        sentinel_(sentinel),
        cgroup_(cgroup),
        folder_(std::move(folder)),
        callbacks_(std::move(callbacks)) {}
  ~SpawnedWorlds();
  SpawnedWorlds(const SpawnedWorlds&) = delete;
  SpawnedWorlds& operator=(const SpawnedWorlds&) = delete;

  // Starts them all, or none; `done` is called when that is known. The names of services are in `store`. Call from the
  // main thread.
  void Spawn(const Asker& asker, MpiWay way, const SpawnRequest& request, StoredValues* store, SpawnDone done);
  // A child process has ended. False when it is none of these.
  bool OnChildEnded(pid_t pid, int wait_status);
  // All have been killed and waited for.
  void OnSwept();
  bool any_lives() const;
  // SIGTERM to all, and SIGKILL after `grace`.
  void Stop(std::chrono::milliseconds grace);
  // SIGKILL to those that this rank has asked for.
  void KillOf(int local_rank);
  // See RankOutput.
  void Pause();
  void Resume();

 private:
  static constexpr int kMostProcesses = 1024;  // that live at one time
  static constexpr size_t kMostEnded = 32;     // worlds that are kept, for those that were connected to them

  struct Process {
    RankCommand command;
    RankProcess process;
    std::unique_ptr<RankOutput> output;
    bool lives = false;
    bool told = false;  // we have ended it
  };
  struct World {
    uint64_t number = 0;
    Asker asker;
    v1::Assignment assignment;
    std::string name;
    std::unique_ptr<MpiService> mpi;
    std::vector<Process> processes;
    size_t starting = 0;
    SpawnDone done;  // until it is known whether they run
    EventLoop::TimerId start_timer = 0;
  };

  absl::Status Check(const SpawnRequest& request) const;
  absl::Status Prepare(World* world, MpiWay way, const SpawnRequest& request, StoredValues* store);
  absl::Status Start(World* world, const SpawnRequest& request);
  void LookAtStart(World* world, size_t index);
  void FinishStart(World* world, const absl::Status& status);
  void Kill(World* world);
  void Fail(World* world, size_t index, const std::string& what, std::optional<int> exit_code);
  std::string NameOf(const World& world, size_t index) const;
  std::string NameOfRank(int local_rank) const;
  void LookForInit(uint64_t number, size_t index);
  void ForgetLater();
  void Forget();

  EventLoop* const loop_;
  const v1::Assignment& assignment_;
  Sentinel* const sentinel_;
  const Cgroup* const cgroup_;
  const std::string folder_;
  const Callbacks callbacks_;
  uint64_t next_ = 1;
  bool paused_ = false;
  std::deque<std::unique_ptr<World>> worlds_;  // oldest first
  EventLoop::TimerId kill_timer_ = 0;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  // for timers
};

}  // namespace cohort::launcher
