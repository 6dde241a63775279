// Serves MPI programs in the ways that their job asks for: PMI-1 (pmi1_service.h) and PMIx (pmix_service.h). On the
// agent's event loop.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/mpi/mpi_use.h"
#include "cohort/launcher/agent/mpi/pmi1_service.h"
#include "cohort/launcher/agent/mpi/pmix_service.h"
#include "cohort/launcher/agent/mpi/spawn/spawn_request.h"
#include "cohort/launcher/agent/mpi/stored_values.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// How long things take before something is said of them.
struct MpiDelays {
  std::chrono::nanoseconds cause_may_show = std::chrono::seconds(1);
  std::chrono::nanoseconds absence_is_told = std::chrono::seconds(30);
  std::chrono::nanoseconds wait_is_told = std::chrono::seconds(30);
};

enum class MpiWay { kPmi1, kPmix };

class MpiService {
 public:
  struct Callbacks {
    std::function<void(const v1::VariableRequest&)> ask;  // see StoredValues
    std::function<void(const std::string&)> on_notice;    // a line for the user
    std::function<void(const std::string&)> on_left;      // the same, about a failure (OnFailure)
    // This local rank has called MPI_Abort with that code and waits to be killed.
    std::function<void(int local_rank, int code)> on_abort;
    // This local rank, which is in MPI, can't go on; said later (cause_may_show), so that another cause shows first.
    std::function<void(int local_rank, const std::string& why)> on_stuck;
    // This local rank asks for new processes, by the library that is served so.
    std::function<void(int local_rank, MpiWay way, const SpawnRequest& request, SpawnDone done)> on_spawn;
  };
  // A world that a rank has asked for: its values go with those of the ranks.
  struct Spawned {
    StoredValues* store = nullptr;  // outlives this object
    std::vector<std::pair<std::string, std::string>> values;
    std::string parent;  // the name of the asking rank's world
    int parent_rank = 0;
  };

  // The name by which libraries know the world of these ranks.
  static std::string WorldOf(const v1::Assignment& assignment) {
    return assignment.job().job_id() + "-" + std::to_string(assignment.epoch());
  }
  // Whether ranks of that job are served at all.
  static bool Serves(const v1::JobSpec& job);

  // The assignment outlives this object.
  MpiService(EventLoop* loop, const v1::Assignment& assignment, Callbacks callbacks, const MpiDelays& delays = {},
             std::optional<Spawned> spawned = std::nullopt);
  ~MpiService() {
    *lives_ = false;
    loop_->Cancel(stuck_timer_);
    loop_->Cancel(absence_timer_);
  }
  MpiService(const MpiService&) = delete;
  MpiService& operator=(const MpiService&) = delete;

  // Not OK: the ranks can't be served as the job asks, with the remedy. Where PMIx is absent that the job would only
  // use if it were present, ranks of Open MPI would each be alone: that is said, and ends such ranks of nodes that have
  // it.
  absl::Status Start(const PmixService::Starter& start_pmix = StartPmixEndpoint);
  // A descriptor that the rank inherits, or -1, and the variables by which its MPI library finds us, which give way to
  // those of the user. After Start.
  int InheritedBy(int local_rank) const { return pmi1_ != nullptr ? pmi1_->InheritedBy(local_rank) : -1; }
  std::vector<std::string> EnvironmentOf(int local_rank);
  // The ranks have been started: only they hold their ends from now on.
  void CloseInherited();
  // A rank's process has ended; `in_order`: by itself, with 0.
  void OnEnded(int local_rank, bool in_order = false);
  // Something has failed. If a rank of this node left MPI at about that time, MPI itself may have ended another for
  // want of it: the user is told that it has left, from the loop, after what the caller says of the failure. Later
  // failures say it themselves (on_stuck).
  void OnFailure();

  // Takes the answers.
  StoredValues& store() { return spawned_ ? *spawned_->store : store_; }

  MpiUse UseOf(int local_rank) const;

 private:
  void GetStuck(int local_rank, const std::string& why);
  void TellOfLeftSoon();
  void TellOfLeft();
  void NoteAbsence(const std::string& why);
  void TellOfAbsence();

  EventLoop* const loop_;
  const v1::Assignment& assignment_;
  const Callbacks callbacks_;
  const std::optional<Spawned> spawned_;
  StoredValues store_;
  std::unique_ptr<Pmi1Service> pmi1_;
  std::unique_ptr<PmixService> pmix_;
  const MpiDelays delays_;
  EventLoop::TimerId stuck_timer_ = 0;
  std::string absence_;  // a line for the user, unless ranks use PMI-1; empty: there is none, or it is said
  EventLoop::TimerId absence_timer_ = 0;
  std::vector<std::pair<int, EventLoop::Clock::time_point>> ended_in_order_;  // local ranks, and when; each once
  std::optional<EventLoop::Clock::time_point> failed_at_;                     // first
  bool left_is_told_ = false;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  // for what is posted already
};

}  // namespace cohort::launcher
