// One world of processes that a rank, or a process that was spawned before, has asked for while it ran.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/mpi/mpi_service.h"
#include "cohort/launcher/agent/mpi/spawn/spawn_request.h"
#include "cohort/launcher/agent/rank/rank_output.h"
#include "cohort/launcher/agent/rank/rank_process.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

struct SpawnedWorld {
  // The process that asks: a rank of this node, or a process that it has spawned.
  struct Asker {
    int local_rank = 0;  // of the rank, or of that whose process it is
    std::string world;   // the name of its world
    int rank = 0;        // in that
  };
  struct Process {
    RankCommand command;
    RankProcess process;
    std::unique_ptr<RankOutput> output;
    bool lives = false;
    bool told = false;  // we have ended it
  };

  // A world of one node, that of `askers`, and the ranks of the request.
  void MakeAssignment(const v1::Assignment& askers, MpiWay way, const SpawnRequest& request);
  // Makes the processes, none of which runs, once `mpi` serves the world. `environment`: that of the asking rank.
  // FindProgram's errors.
  absl::Status MakeCommands(const SpawnRequest& request, std::vector<std::string> environment, int cgroup);
  // "process 1 of 2 that rank 0 has spawned (./worker, pid 4711)"
  std::string NameOf(size_t index) const;
  // The first process that lives.
  std::optional<size_t> FirstLiving() const;
  int living() const;
  MpiUse UseOf(size_t index) const { return mpi->UseOf(static_cast<int>(index)); }
  // SIGKILL to all. Their ends are told by nobody.
  void Kill();

  uint64_t number = 0;
  Asker asker;
  std::string asker_name;  // "rank 0"
  v1::Assignment assignment;
  std::string name;
  std::unique_ptr<MpiService> mpi;
  std::vector<Process> processes;
  size_t starting = 0;
  SpawnDone done;  // until it is known whether they run
  EventLoop::TimerId start_timer = 0;
};

}  // namespace cohort::launcher
