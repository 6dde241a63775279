// The selector chooses the algorithm of a collective: the registered one with the least predicted time. A pure function
// of what all members share (kind, bytes, the group's topology, the tuning table), so that all choose alike; never of
// buffers' addresses or of anything measured on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/select/cost_model.h"
#include "cohort/comm/select/tuning.h"
#include "cohort/comm/types.h"

namespace cohort::comm {

// The demands of a call on its algorithm besides speed. Equal on all members.
struct Demands {
  bool rank_order = false;  // only algorithms with this trait
  bool built_in = false;    // by the built-in figures and the rules, and by no figure of a calibration or a machine
  // Bytes that algorithms which don't fold all operands at once move for one byte of the buffers, after a conversion.
  int32_t widening = 1;
  bool staged = false;   // those that do, too
  bool decodes = false;  // a reduction computes in another type than its elements'

  friend bool operator==(const Demands&, const Demands&) = default;
};

struct Choice {
  const AlgorithmInfo* algorithm = nullptr;
  int32_t pieces = 1;
  double predicted_us = 0;
  // The best of the other algorithms; null where there is none or the algorithm was forced.
  const AlgorithmInfo* runner_up = nullptr;
  double runner_up_us = 0;
  bool ruled = false;  // a rule of the table decided; the runner-up is then what the prediction would have chosen
  // For single-copy algorithms: what serves the call where members can't reach each other's memory, or where that would
  // store into private memory what messages fetch from windows.
  const AlgorithmInfo* fallback = nullptr;
  int32_t fallback_pieces = 1;
};

// The choice for a block of `bytes` bytes (CollectiveRequest::count elements). With `forced` not empty that algorithm,
// with its best number of pieces. kInvalidArgument: no algorithm of that name (the error lists them), or it cannot
// serve this group; kUnimplemented: the kind has no algorithm at all (send, recv).
absl::StatusOr<Choice> Select(CollectiveKind kind, int64_t bytes, const GroupTopology& topology, const Tuning& tuning,
                              std::string_view forced = {}, const Demands& demands = {});

// The choice (marked by a star), the runner-up and every other alternative with its predicted time or why it can't
// serve such calls, one line each, and the table in force, for people.
std::string ExplainSelection(CollectiveKind kind, int64_t bytes, const GroupTopology& topology, const Tuning& tuning,
                             const Demands& demands = {});

// Select with a memory: what a communicator calls for every operation. One per group; one thread at a time. Looks up
// in a few nanoseconds and allocates nothing when the call is as an earlier one; a new choice takes a microsecond or
// two. Holds 64 calls at first and 1,024 in the end.
class Selector {
 public:
  Selector(const GroupTopology& topology, const Tuning& tuning) : topology_(topology), tuning_(tuning) {
    built_in_.rules = tuning.rules;
  }

  const GroupTopology& topology() const { return topology_; }
  const Tuning& tuning() const { return tuning_; }

  absl::StatusOr<Choice> Choose(CollectiveKind kind, int64_t bytes, std::string_view forced = {},
                                const Demands& demands = {});
  // ExplainSelection of what Choose would choose.
  std::string Explain(CollectiveKind kind, int64_t bytes, const Demands& demands) const;

 private:
  struct Entry {
    CollectiveKind kind = CollectiveKind::kBarrier;
    int64_t bytes = -1;
    Demands demands;
    std::string_view forced;  // an algorithm's own name, or empty
    Choice choice;
  };
  static constexpr size_t kWays = 2;  // entries that a call may be in, the one written last before the other
  static constexpr size_t kEntries = 64;
  static constexpr size_t kMostEntries = 1024;
  GroupTopology TopologyFor(const Demands& demands) const;
  const Tuning& TuningFor(const Demands& demands) const { return demands.built_in ? built_in_ : tuning_; }
  static uint64_t HashOf(CollectiveKind kind, int64_t bytes, std::string_view forced, const Demands& demands);

  GroupTopology topology_;
  Tuning tuning_;
  Tuning built_in_;                                            // with the rules of tuning_
  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);  // more where calls push one another out
  size_t misses_ = 0;
};

}  // namespace cohort::comm
