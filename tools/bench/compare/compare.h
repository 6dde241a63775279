// Measuring one point on all systems in turn, and what the figures say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench/compare/session.h"
#include "tools/measure/operation.h"

namespace cohort::bench {

// The choice of measurements.
struct CompareOptions {
  std::vector<measure::Operation> operations;
  std::vector<int64_t> sizes;
  std::vector<std::string> peers;  // by name; empty: all
  int alternations = 5;
  double slot_ms = 30;  // of one system in one alternation
  bool without_spinners = false;
};

// One contestant: a peer, or ours in one kind of memory.
struct Contestant {
  std::string name;  // "window", "private", "openmpi", ...
  bool ours = false;
  bool uses_ucx = false;
  std::vector<double> medians_us = {};  // of each alternation
  double median_us = 0;                 // the median of those
  double p99_us = 0;                    // of all calls
  uint64_t wrong = 0;
};

struct PointResult {
  Transport transport = Transport::kSharedMemory;
  int ranks = 0;
  measure::Operation operation{};
  int64_t bytes = 0;
  std::vector<Contestant> contestants;

  const Contestant* Find(const std::string& name) const;
  // The peer with the least median; null where there is none. `only_ucx`: among those that use UCX.
  const Contestant* BestPeer(bool only_ucx = false) const;
};

// The median over the alternations of ours / theirs; 0 where either is missing.
double Ratio(const Contestant* ours, const Contestant* theirs);

// Measures one point on every system that is alive and has the operation. `why` says why nothing was measured.
PointResult MeasurePoint(Session& session, Transport transport, const CompareOptions& options,
                         measure::Operation operation, int64_t bytes, std::string* why);

}  // namespace cohort::bench
