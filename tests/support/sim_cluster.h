// Many ranks in one process, one running at a time, all choices drawn from one seed: real runtimes, communicators and
// engines over the simulated transport. A rank's program is a plain function that may block; whenever it waits, the
// seed decides who goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cohort/comm/communicator.h"
#include "cohort/comm/transport/sim/sim_transport.h"
#include "cohort/runtime/runtime.h"

namespace cohort::testing {

struct SimClusterOptions {
  int ranks = 2;
  int nodes = 1;  // ranks are spread evenly, in order
  comm::SimOptions network;
  // A run that takes longer is a hang: the test process ends with a message.
  std::chrono::seconds deadline{60};
};

class SimCluster;

// The view of a rank's program.
struct SimRank {
  int rank = 0;
  runtime::Runtime* runtime = nullptr;
  comm::Communicator* world = nullptr;
  SimCluster* cluster = nullptr;

  // Lets others run until `done` says so.
  void WaitUntil(const std::function<bool()>& done);
  // Polls this rank's engine `times` times.
  void Poll(int times);
  // The rank is gone: the others are told (and this program should return). Its links end with its communicators.
  void Die(const std::string& text);
};

class SimCluster {
 public:
  explicit SimCluster(const SimClusterOptions& options);
  ~SimCluster();
  SimCluster(const SimCluster&) = delete;
  SimCluster& operator=(const SimCluster&) = delete;

  // Runs the program on every rank and returns when all have returned. May be called several times: runtimes and world
  // communicators stay.
  void Run(const std::function<void(SimRank&)>& program);

  struct State;

 private:
  friend struct SimRank;
  std::unique_ptr<State> state_;
};

}  // namespace cohort::testing
