#include "cohort/comm/simulate/simulator.h"

#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/simulate/event_engine.h"
#include "cohort/comm/simulate/program.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

// Stretches shorter than this are not worth the comparisons.
constexpr size_t kLeastRepetition = 256;

// The ranks to time: those of one leaf switch where every leaf switch looks alike, else all.
int64_t RanksToTime(const AlgorithmInfo& algorithm, const Network& network, bool shortcuts) {
  const int64_t all = network.ranks();
  if (!shortcuts || !algorithm.traits.rotation || network.cyclic) return all;
  const int64_t leaf = network.ranks_per_node * network.nodes_per_leaf;
  return network.nodes % network.nodes_per_leaf == 0 ? leaf : all;
}

}  // namespace

absl::StatusOr<SimulationReport> Simulate(const AlgorithmInfo& algorithm, int64_t bytes, const Network& network,
                                          const SimulateOptions& options) {
  const int64_t ranks = network.ranks();
  if (ranks > std::numeric_limits<int>::max() / 2) {
    return absl::InvalidArgumentError("at most 2^30 ranks can be timed");
  }
  const int size = static_cast<int>(ranks);
  PlanRequest request;
  request.kind = algorithm.kind;
  request.size = size;
  request.root = IsRooted(algorithm.kind) ? options.root : -1;
  std::vector<int> nodes;
  if (algorithm.composition != nullptr) {
    for (int64_t rank = 0; rank < ranks; ++rank) nodes.push_back(static_cast<int>(network.NodeOf(rank)));
  }
  const Placement placement(nodes);
  if (algorithm.composition != nullptr) request.placement = &placement;
  request.pieces = options.pieces > 0 ? options.pieces : PartsOf(algorithm, size, placement.shape());
  const double chunk = static_cast<double>(bytes) / request.pieces;
  const bool fanout = network.nodes == 1 && chunk <= static_cast<double>(Tuning().fanout_bytes);
  const bool shortcuts = options.shortcuts && options.on_step == nullptr;
  const int64_t timed = RanksToTime(algorithm, network, shortcuts);
  EventEngine engine(network, timed, chunk, fanout, options.on_step);
  std::deque<std::vector<Program>> programs;
  std::vector<Repetition> repetitions;
  int64_t operations = 0;
  for (int rank = 0; rank < timed; ++rank) {
    if (programs.empty() || !algorithm.traits.rotation) {
      request.rank = rank;
      COHORT_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(algorithm, request));
      programs.push_back(ProgramsOf(plan));
    }
    for (const Program& program : programs.back()) operations += static_cast<int64_t>(program.size());
    if (operations > options.most_operations) {
      return absl::ResourceExhaustedError(std::string(Name(algorithm.kind)) + " " + std::string(algorithm.name) +
                                          " among " + std::to_string(size) + " ranks has more than " +
                                          std::to_string(options.most_operations) +
                                          " operations: fewer ranks or pieces can be timed");
    }
    engine.AddRank(programs.back());
  }
  const bool alike = algorithm.traits.rotation && shortcuts && programs.back().size() == 1;
  if (alike) repetitions = FindRepetitions(programs.back()[0], kLeastRepetition);
  return engine.Run(repetitions);
}

}  // namespace cohort::comm
