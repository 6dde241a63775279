// Ranks as real processes, forked by the test: they meet through a key-value store in memory that they share, with no
// files, ports or servers, and none outlives the test.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort::testing {

struct ProcessClusterOptions {
  int ranks = 2;
  // Simulated hosts over which the ranks are spread, evenly and in order. Hosts talk over UCX or TCP.
  int nodes = 1;
  // Called first of all in each rank's process, with its node: moves it to the node's namespaces, for instance. Returns
  // "" or what went wrong, which is then the rank's result.
  std::function<std::string(int node)> enter_node = {};
  bool progress_thread = false;
  // A process that is still there after this long is killed, and its result says so.
  std::chrono::seconds deadline{120};
};

// The view of a rank's program.
struct ProcessRank {
  int rank = 0;
  int size = 1;
  runtime::Runtime* runtime = nullptr;
  comm::Communicator* world = nullptr;
  // Waits until `count` ranks have called Meet(name) in all, without any help of the library under test; false when
  // that takes longer than 30 s.
  std::function<bool(const std::string& name, int count)> meet;
};

struct RankResult {
  std::string text;     // what the program returned; "" is success by convention
  bool exited = false;  // by itself, with code 0
  int signal = 0;       // that ended it
  bool hung = false;    // killed at the deadline
};

// Runs `program` in `options.ranks` forked processes and waits for them. The caller must have one thread.
std::vector<RankResult> RunProcesses(const ProcessClusterOptions& options,
                                     const std::function<std::string(ProcessRank&)>& program);

// Why ranks on different (simulated) hosts can't talk in this build or on this machine: the reason for a skip. Empty:
// they can.
std::string WhyHostsCannotTalk();

}  // namespace cohort::testing
