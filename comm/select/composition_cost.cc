#include "cohort/comm/select/composition_cost.h"

#include <algorithm>
#include <limits>

namespace cohort::comm {
namespace {

// Time of data between the hosts, divided by their time among as many ranks that are alone on theirs: the ranks that
// wait inside the hosts share CPUs and caches with those at work. From the grid of tools/bench/tuner.
constexpr double kSharedHost = 1.35;

double PredictPhase(const AlgorithmInfo& whole, const Phase& phase, int32_t pieces, int64_t bytes,
                    const GroupTopology& topology, const Tuning& tuning) {
  // Ranks that take turns on CPUs: where one of each node is at work, the others leave them theirs.
  const bool few = phase.between && whole.composition->scheme == Scheme::kLeader;
  const double share = few ? topology.ranks_per_cpu * phase.size / topology.size : topology.ranks_per_cpu;
  const GroupTopology level = {.size = phase.size,
                               .nodes = phase.between ? phase.size : 1,
                               .ranks_per_cpu = std::max(1.0, share),
                               .windows = topology.windows,
                               .near_caches = topology.near_caches};
  const auto data = static_cast<int64_t>(static_cast<double>(bytes) * phase.blocks);
  const double time = PredictMicroseconds(*phase.algorithm, pieces, data, level, tuning);
  if (!phase.between) return time;
  const double empty = PredictMicroseconds(*phase.algorithm, pieces, 0, level, tuning);
  return empty + (time - empty) * kSharedHost;
}

// The parts on one of the levels, each in as many pieces as it wants by itself.
double PredictLevel(const AlgorithmInfo& algorithm, bool between, int64_t bytes, const GroupTopology& topology,
                    const Tuning& tuning) {
  double time = 0;
  for (const Phase& phase : PhasesOf(algorithm, ShapeOf(topology), 1)) {
    if (phase.between != between) continue;
    time += PredictPhase(algorithm, phase, PartsOf(*phase.algorithm, phase.size), bytes, topology, tuning);
  }
  return time;
}

// The compositions of one kind and scheme so far: those of one inner algorithm lie together.
struct BestOfScheme {
  std::string_view first_inner;
  std::string_view inner;
  const AlgorithmInfo* outer = nullptr;
  double inner_us = std::numeric_limits<double>::max();
  double outer_us = std::numeric_limits<double>::max();
};

}  // namespace

NodeShape ShapeOf(const GroupTopology& topology) {
  return {.nodes = topology.largest_node > 0 ? topology.nodes : 0,
          .smallest = topology.smallest_node,
          .largest = topology.largest_node};
}

double PredictComposition(const AlgorithmInfo& algorithm, int32_t pieces, int64_t bytes, const GroupTopology& topology,
                          const Tuning& tuning) {
  double time = 0;
  for (const Phase& phase : PhasesOf(algorithm, ShapeOf(topology), pieces)) {
    time += PredictPhase(algorithm, phase, phase.pieces, bytes, topology, tuning);
  }
  return time;
}

std::vector<const AlgorithmInfo*> BestCompositions(CollectiveKind kind, int64_t bytes, const GroupTopology& topology,
                                                   const Tuning& tuning) {
  std::vector<const AlgorithmInfo*> found;
  const NodeShape shape = ShapeOf(topology);
  if (!shape.two_levels()) return found;
  const std::span<const AlgorithmInfo> all = AllAlgorithms().subspan(Algorithms().size());
  for (const Scheme scheme : {Scheme::kLeader, Scheme::kShared}) {
    BestOfScheme best;
    std::string_view inner;
    const auto fits = [&](const AlgorithmInfo& algorithm) {
      return algorithm.kind == kind && algorithm.composition->scheme == scheme;
    };
    for (const AlgorithmInfo& algorithm : all) {
      if (!fits(algorithm)) continue;
      const Composition& composition = *algorithm.composition;
      if (best.first_inner.empty()) best.first_inner = composition.inner;
      if (composition.inner != inner) {
        inner = composition.inner;
        const double time = PredictLevel(algorithm, false, bytes, topology, tuning);
        if (time < best.inner_us) {
          best.inner_us = time;
          best.inner = inner;
        }
      }
      if (inner == best.first_inner && CheckRequirements(algorithm, topology.size, shape).ok()) {
        const double time = PredictLevel(algorithm, true, bytes, topology, tuning);
        if (time < best.outer_us) {
          best.outer_us = time;
          best.outer = composition.outer;
        }
      }
    }
    for (const AlgorithmInfo& algorithm : all) {
      if (best.outer == nullptr || !fits(algorithm)) continue;
      if (algorithm.composition->inner == best.inner && algorithm.composition->outer == best.outer) {
        found.push_back(&algorithm);
      }
    }
  }
  return found;
}

}  // namespace cohort::comm
