// Measuring one point on all systems in turn, and what the figures say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/collperf/options.h"
#include "tools/collperf/peers/conductor.h"
#include "tools/measure/operation.h"

namespace cohort::collperf {

// One turn of a contestant.
struct Turn {
  double median_us = 0;
  // One-way latency of a flag between ranks 0 and 1 right before and after the calls; 0: not known.
  double flag_before_ns = 0;
  double flag_after_ns = 0;
  bool counts = true;  // false: the CPUs were placed otherwise than in most turns of the point

  // As measure::PlacementOf; "" where it is not known.
  std::string placement() const;
};

// A system in one kind of memory.
struct Contestant {
  std::string name;  // ours: "window" and "private"; "openmpi", "bare", "bare-window", ...
  const SystemEntry* system = nullptr;
  std::vector<Turn> turns = {};
  double median_us = 0;  // the median of those that count; 0: none counts
  double p99_us = 0;     // of all calls
  uint64_t wrong = 0;
};

// One point of a comparison. Each of the last three makes it another kind of point than a plain one.
struct Wanted {
  measure::Operation operation{};
  int64_t bytes = 0;
  bool rewritten = false;  // the input was written again before each call
  int messages = 1;        // under way at a time, from every rank to the next one
  double compute_us = 0;   // of computing beside an asynchronous call

  bool plain() const { return !rewritten && messages == 1 && compute_us <= 0; }
};

struct PointResult : Wanted {
  Transport transport = Transport::kSharedMemory;
  int ranks = 0;
  std::string placement = {};  // of the turns that count: "near" or "far"; "" where it is not known
  std::vector<Contestant> contestants;

  const Contestant* Find(const std::string& name) const;
  // The peer with the least median, a floor not among them; null where there is none. `only_ucx`: among those
  // that use UCX.
  const Contestant* BestPeer(bool only_ucx = false) const;
};

// Counts the turns of the placement in which most of the point's turns ran, sets it, and the contestants' medians by
// those turns. Where ranks share CPUs (`cpus_are_shared`) a flag says little about the placement, and all turns count.
void CountOnePlacement(bool cpus_are_shared, PointResult* point);

// The median over the turns, where both count, of ours / theirs; 0 where there is none.
double Ratio(const Contestant* ours, const Contestant* theirs);

// Measures one point on every system that is alive and has the operation. `why` says why nothing was measured.
PointResult MeasurePoint(Conductor& conductor, Transport transport, const Options& options, const Wanted& wanted,
                         std::string* why);

}  // namespace cohort::collperf
