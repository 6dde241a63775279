// The alternatives of a selection as values: the text of ExplainSelection and `plan explain --json` are made of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/comm/select/selector.h"

namespace cohort::comm {

struct Alternative {
  const AlgorithmInfo* algorithm = nullptr;
  std::string why_not;  // it can't serve such calls; empty: it can
  Choice choice;        // its pieces and predicted time, if it can
  bool chosen = false;
  bool runner_up = false;
  bool fallback = false;  // where members can't reach each other's memory, or only slower
};

struct Explanation {
  Choice choice;
  std::vector<Alternative> alternatives;
};

// As Select, with every other algorithm.
absl::StatusOr<Explanation> ExplainAlternatives(CollectiveKind kind, int64_t bytes, const GroupTopology& topology,
                                                const Tuning& tuning, const Demands& demands = {});

}  // namespace cohort::comm
