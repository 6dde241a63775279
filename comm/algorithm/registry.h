// The list of algorithms (algorithms.def) as a table. An algorithm is a pure function from a PlanRequest to a Plan, a
// cost formula and a few declared facts; the selector reads only this table.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/plan/placement.h"
#include "cohort/comm/plan/plan.h"
#include "cohort/comm/types.h"

namespace cohort::comm {

// The arguments of an algorithm's formulas.
struct CostQuery {
  int size = 1;
  int32_t pieces = 1;
  // A publish is one write that all members read; otherwise one send to each of them.
  bool fanout = true;
};

// The cost of a plan, by the formula in the head comment of its file. Data are counted in chunks (a chunk is 1/pieces
// of the operation's block); a maximum is taken over the ranks. The tests compare `rounds` and `chunks` with what the
// checker counts in the plans themselves; the others serve predictions only (comm/select/selector.h).
struct AlgorithmCost {
  int64_t rounds = 0;    // messages in the longest chain of messages that wait for one another
  int64_t messages = 0;  // of the busiest rank in its busier direction; an estimate where ranks differ
  int64_t chunks = 0;    // sent or received by the busiest rank in its busier direction; a publish is sent once
  int64_t critical = 0;  // on the wire one after another along the slowest path, with one port per rank
  int64_t reduced = 0;   // combined by the busiest rank, along that path
  // As `critical` where receivers move the data and one sender's data can be read by many at once (shared memory); 0:
  // the same.
  int64_t read_critical = 0;
  // Received by all ranks together; 0: (size - 1) blocks where there is a root, else `size` times the slowest path.
  int64_t total = 0;
  // Single-copy algorithms: the number of times the busiest rank begins to read or write another one's buffer.
  int64_t accesses = 0;
};

struct AlgorithmTraits {
  bool power_of_two = false;  // group sizes it can serve
  int min_ranks = 1;
  int max_ranks = std::numeric_limits<int>::max();
  bool uses_publish = false;
  bool parts_by_rank = false;  // cuts the block into a part for each rank: wants a multiple of `size` pieces
  // The same with a part for each of the largest power of two of ranks.
  bool power_of_two_parts = false;
  // Every result is ((x0 op x1) op x2) op ... in the order of ranks: fit for Determinism::kOrderInvariant and for
  // functions that do not commute. The checker proves it.
  bool rank_order = false;
  // Every result can be one fold of the operands of all ranks, which is rounded once: see FoldsOnce.
  bool folds_once = false;
  bool pipelined = false;  // gains from more pieces than it needs
  // AlgorithmCost::rounds are those of ranks that send and receive one message at a time; chains of messages that wait
  // for one another may be shorter.
  bool one_port_rounds = false;
  // Rank r's messages are rank 0's with every peer r further on, where the pieces are a multiple of the parts.
  bool rotation = false;
  // Reads and writes other ranks' memory: for groups on one host. Where members can't reach each other's buffers the
  // call is served by another algorithm, which all members choose alike.
  bool single_copy = false;
};

struct Composition;  // composition.h

struct AlgorithmInfo {
  CollectiveKind kind;
  std::string_view name;
  uint16_t id;  // a hash of kind and name, which signatures carry. 0 is no algorithm
  Plan (*build)(const PlanRequest&);
  AlgorithmCost (*cost)(const CostQuery&);
  AlgorithmTraits traits;
  // Set for algorithms of two levels, which have no `build` and `cost`: BuildPlan and PhasesOf serve them.
  const Composition* composition = nullptr;
};

// The algorithms of the list, in its order.
std::span<const AlgorithmInfo> Algorithms();
// The same, and after them every composition of two (composition.h).
std::span<const AlgorithmInfo> AllAlgorithms();
// Finds one among all algorithms; null if there is none.
const AlgorithmInfo* FindAlgorithm(CollectiveKind kind, std::string_view name);
const AlgorithmInfo* FindAlgorithm(uint16_t id);
// "binomial, flat, ring, or across hosts SCHEME:INNER+OUTER, such as leader:flat+ring": the names for a kind, in the
// order of the list.
std::string AlgorithmNames(CollectiveKind kind);

// The parts that the algorithm cuts a block into, whatever the pieces: they are equal where the pieces are a multiple.
int PartsOf(const AlgorithmInfo& algorithm, int size, const NodeShape& shape = {});

// Whether a reduction of blocks of `block_bytes` is one fold, where its type's partial results would be rounded, or
// overflow in a mean of integers (PlanRequest::fold_once). Operands that come as messages are kept until all are there:
// the largest calls combine them one by one. All members decide alike.
constexpr int64_t kMostFoldedBytes = int64_t{256} << 20;
constexpr bool FoldsOnce(const AlgorithmTraits& traits, int64_t block_bytes, int size) {
  return traits.folds_once && (traits.single_copy || block_bytes <= kMostFoldedBytes / size);
}

// OK when the algorithm can serve groups of this size and shape; else kInvalidArgument with the requirement it misses.
absl::Status CheckRequirements(const AlgorithmInfo& algorithm, int size, const NodeShape& shape = {});

// The plan for one rank. kInvalidArgument when kind, requirements, rank, root, pieces or placement do not fit.
absl::StatusOr<Plan> BuildPlan(const AlgorithmInfo& algorithm, const PlanRequest& request);

}  // namespace cohort::comm
