// The processes that ranks of this node ask for while they run (MPI_Comm_spawn), in the agent's care as the ranks are.
//
//   rank ──its MPI library──► MpiService ──Spawn──► here: a world of its own, with an MpiService of its own ──► rank
//
// They run on the node of the rank that asked, and belong to it: what they print is shown as that rank's, and if one
// fails the rank fails, with the reason. One that ends without MPI_Finalize fails where its asker is in MPI, and may
// wait for it; and the other way round. Each leads a session of its own, in the ranks' cgroup and with their mark: the
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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/mpi/mpi_service.h"
#include "cohort/launcher/agent/spawned_world.h"
#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/open_mpi_folder.h"
#include "cohort/launcher/agent/watch/sentinel.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class SpawnedWorlds {
 public:
  static constexpr int kMostProcesses = 1024;  // that live at one time
  static constexpr int kMostNotices = 64;      // lines for the user on what one rank asks for

  using Asker = SpawnedWorld::Asker;
  struct Callbacks {
    std::function<void(const v1::OutputLine&)> on_line;
    std::function<void(const std::string&)> on_notice;
    // One of its processes has failed: with that code or by that signal, where it ended so. Else there is no code, and
    // the signal is 0.
    std::function<void(int local_rank, const std::string& why, std::optional<int> exit_code, int signal)> on_failure;
    // No process lives any more.
    std::function<void()> on_all_ended;
    // The variables that the rank itself was given, and how far its use of MPI has come.
    std::function<std::vector<std::string>(int local_rank)> environment_of;
    std::function<MpiUse(int local_rank)> use_of;
  };

  // All of it outlives this object. `folders`: for what Open MPI makes. `delays.wait_is_told` is the time after which
  // an MPI_Init that does not come is told, and processes that outlive the ranks.
  SpawnedWorlds(EventLoop* loop, const v1::Assignment& assignment, Sentinel* sentinel, const Cgroup* cgroup,
                OpenMpiFolders folders, Callbacks callbacks, const MpiDelays& delays = MpiDelays())
      : loop_(loop),
        assignment_(assignment),
        sentinel_(sentinel),
        cgroup_(cgroup),
        folders_(std::move(folders)),
        callbacks_(std::move(callbacks)),
        delays_(delays),
        notices_(static_cast<size_t>(assignment.placement().ranks_size()), 0) {}
  ~SpawnedWorlds();
  SpawnedWorlds(const SpawnedWorlds&) = delete;
  SpawnedWorlds& operator=(const SpawnedWorlds&) = delete;

  // Starts them all, or none; `done` is called when that is known. None are started where the request is wrong, the
  // node has no room, a program can't be executed or the job is ending: the user is told why. The names of services are
  // in `store`. Call from the main thread.
  void Spawn(const Asker& asker, MpiWay way, const SpawnRequest& request, StoredValues* store, SpawnDone done);
  // A child process has ended. False when it is none of these.
  bool OnChildEnded(pid_t pid, int wait_status);
  // A rank has ended in order.
  void OnAskerEnded(int local_rank);
  // All ranks have ended: those that live are waited for.
  void OnRanksGone();
  // All have been killed and waited for.
  void OnSwept();
  bool any_lives() const;
  // SIGTERM to all, and SIGKILL after `grace`. No more are started.
  void Stop(std::chrono::milliseconds grace);
  // SIGKILL to those that this rank has asked for.
  void KillOf(int local_rank);
  // See RankOutput.
  void Pause();
  void Resume();

 private:
  static constexpr size_t kMostEnded = 32;  // worlds that are kept, for those that were connected to them
  static constexpr size_t kMostNoticeBytes = 1u << 10;

  absl::Status Prepare(SpawnedWorld* world, MpiWay way, const SpawnRequest& request, StoredValues* store);
  absl::Status Start(SpawnedWorld* world);
  void LookAtStart(SpawnedWorld* world, size_t index);
  void FinishStart(SpawnedWorld* world, const absl::Status& status);
  // A line for the user.
  void Tell(int local_rank, const std::string& text);
  void Fail(SpawnedWorld* world, size_t index, const std::string& what, std::optional<int> exit_code = std::nullopt,
            int signal = 0);
  // Null: it is none of these.
  SpawnedWorld* WorldOf(const std::string& name) const;
  std::string NameOf(const Asker& asker) const;
  MpiUse UseOf(const Asker& asker) const;
  // Calls `then` with the world of that name after the delay, if it is still there.
  void Later(std::chrono::nanoseconds delay, const std::string& name, std::function<void(SpawnedWorld*)> then);
  void TellMissingInit(const SpawnedWorld& world);
  void LookAtEnd(SpawnedWorld* world, size_t index);
  // That asker has ended without MPI_Finalize.
  void EndThoseThatWaitFor(const Asker& asker);
  void Forget();

  EventLoop* const loop_;
  const v1::Assignment& assignment_;
  Sentinel* const sentinel_;
  const Cgroup* const cgroup_;
  const OpenMpiFolders folders_;
  const Callbacks callbacks_;
  const MpiDelays delays_;
  uint64_t next_ = 1;
  bool paused_ = false;
  bool stopped_ = false;
  std::vector<int> notices_;                          // by local rank
  std::deque<std::unique_ptr<SpawnedWorld>> worlds_;  // oldest first
  EventLoop::TimerId kill_timer_ = 0;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  // for timers
};

}  // namespace cohort::launcher
