// Serves programs of Open MPI: a PMIx server for the ranks of the node (pmix/pmix_endpoint.h), and what it asks of the
// other nodes.
//
// On the agent's event loop, to which the server's events are posted. A fence of ranks r0, r1 on node A and r2 on node
// B:
//
//   r0, r1: fence ─► A's server: Fence(A's values) ─► store ─► B's values ─► Answer(all values) ─► r0, r1
//
// With one node the server answers alone. A fence is known to the other nodes by its ranks and how many of the same
// ranks were before. A rank whose values were in no fence is asked for them: its node puts those of all its ranks into
// the store when another node wants some.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/agent/mpi/left_news.h"
#include "cohort/launcher/agent/mpi/mpi_use.h"
#include "cohort/launcher/agent/mpi/node_places.h"
#include "cohort/launcher/agent/mpi/pmix/pmix_endpoint.h"
#include "cohort/launcher/agent/mpi/service_names.h"
#include "cohort/launcher/agent/mpi/value_exchange.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/control/parts/program_of.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class PmixService {
 public:
  struct Callbacks {
    std::function<void(const std::string&)> on_notice;  // a line for the user
    // This local rank has called MPI_Abort with that code and waits to be killed.
    std::function<void(int local_rank, int code)> on_abort;
    // This local rank can't go on.
    std::function<void(int local_rank, const std::string& why)> on_stuck;
    // This local rank asks for new processes.
    std::function<void(int local_rank, const SpawnRequest& request, SpawnDone done)> on_spawn;
  };
  // A world that a rank has asked for.
  struct Spawned {
    std::string parent;  // the namespace of that rank
    int parent_rank = 0;
  };
  using Starter =
      std::function<absl::StatusOr<std::unique_ptr<PmixEndpoint>>(const PmixEndpoint::Job&, PmixEndpoint::Handler)>;

  // The assignment and the store outlive this object. A fence, or ranks in MPI_Init, that wait for `patience` are told.
  // `spawned`: not the job's own ranks, but a world that one of them has asked for.
  PmixService(EventLoop* loop, const v1::Assignment& assignment, StoredValues* store, Callbacks callbacks,
              std::chrono::nanoseconds patience, std::optional<Spawned> spawned = std::nullopt);
  ~PmixService();
  PmixService(const PmixService&) = delete;
  PmixService& operator=(const PmixService&) = delete;

  // Starts the server, by `start`, for ranks that share `cpus` CPUs. Not OK where there is no PMIx, with the remedy.
  absl::Status Start(int cpus, const Starter& start = StartPmixEndpoint);
  std::vector<std::string> EnvironmentOf(int local_rank);
  // The rank's process has ended.
  void OnEnded(int local_rank);
  // The namespace of the ranks.
  const std::string& job_name() const { return job_name_; }
  MpiUse UseOf(int local_rank) const;

 private:
  static constexpr size_t kMostSaidBytes = 64u << 10;  // by a rank

  // kNew ─MPI_Init─► kConnected ─MPI_Finalize─► kFinalized ─► kConnected, by a second program of the rank; kEnded from
  // any.
  enum class State : uint8_t { kNew, kConnected, kFinalized, kEnded };
  struct Rank {
    State state = State::kNew;
    bool used = false;
    bool left = false;      // kEnded without MPI_Finalize
    size_t said_bytes = 0;  // by its library to the user
  };

  void On(const PmixEndpoint::Connected& event);
  void On(const PmixEndpoint::Finalized& event);
  void On(const PmixEndpoint::Aborted& event);
  void On(const PmixEndpoint::Said& event);
  void On(const PmixEndpoint::Fence& event);
  void On(const PmixEndpoint::Wanted& event);
  void On(const PmixEndpoint::Values& event);
  void On(const PmixEndpoint::Publish& event);
  void On(const PmixEndpoint::LookUp& event);
  void On(const PmixEndpoint::Unpublish& event);
  void On(const PmixEndpoint::Spawn& event);
  void On(const PmixEndpoint::Joined& event);
  // Tells the user each line of a text that the rank's library gives, without the rulers around it.
  void TellLines(int local_rank, const std::string& before, const std::string& text);
  // Answers a call on names.
  ServiceNames::Done AnswerOf(uint64_t number);
  void FinishFence(const PmixEndpoint::Fence& fence, const std::vector<size_t>& members,
                   const std::vector<std::string>& others);
  // Values for other nodes, with the version of the server that made them.
  std::string Sealed(const std::string& values) const { return server_->version() + "\n" + values; }
  // The values in the text of a node; none where its version differs, which is told to a rank in MPI.
  std::optional<std::string> Unsealed(size_t node, const std::string& text);
  // Ranks that wait for one that has ended can't go on.
  void LookForLeft();
  void OnLeft(const std::string& what);
  // Ranks of this node that have not called MPI_Init, where others have, by their numbers in the world.
  std::vector<int> MissingInInit() const;
  void WatchWaits();
  void TellOfMissing() const;
  void ShareValues();
  int NumberOf(int local_rank) const { return places_.nodes[places_.own].first_rank + local_rank; }
  const std::string& own_name() const { return places_.nodes[places_.own].name; }

  EventLoop* const loop_;
  StoredValues* const store_;
  const Callbacks callbacks_;
  const NodePlaces places_;
  const int world_size_;
  const std::string job_name_;
  ValueExchange exchange_;
  LeftNews left_news_;
  ServiceNames names_;
  const std::optional<Spawned> spawned_;
  std::string left_elsewhere_;    // what another node has told
  bool refused_to_join_ = false;  // which is told once
  const RankPrograms& programs_;
  const bool nodes_share_host_;
  const v1::Assignment& assignment_;
  int cpus_ = 1;
  std::vector<Rank> ranks_;
  std::map<std::string, uint64_t> rounds_;  // fences so far by their ranks
  std::set<size_t> asked_nodes_;            // for the values of their ranks
  const std::chrono::nanoseconds patience_;
  EventLoop::TimerId wait_timer_ = 0;                           // set while something waits
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  // for events that are posted already
  std::unique_ptr<PmixEndpoint> server_;
};

}  // namespace cohort::launcher
