// On which step a preempted job stops: the one that no rank has begun and that all can still come to.
//
//   rank 0  ── step 7 ──┐ begins 8, waits ────────────────┐ runs 8 ──┐ 9: stops
//   rank 1  ── step 8 ──────────┐ begins 9, waits ────────┤          │ 9: stops
//   rank 2  ── step 7 ────┐ begins 8, waits ──────────────┘ runs 8 ──┘ 9: stops
//              notice                            max = 9 ─┘
//
// A rank that waits has begun nothing, so the greatest number can't be passed by anybody; whoever has a smaller one
// goes on up to it. Two messages a node, whatever the number of ranks: its agent adds them up.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class StepAgreement {
 public:
  explicit StepAgreement(uint32_t nodes) : answered_(nodes, false), missing_(nodes) {}

  // What a node's ranks said. Only the first answer of a node counts.
  void Answer(uint32_t node, const v1::NodeStep& step);
  // Nobody waits for the node's answer any more: its ranks have failed, or it is lost.
  void DoWithout(uint32_t node);

  // The agreed step, once and as soon as no answer is missing.
  std::optional<v1::StopStep> Take();

 private:
  bool Check(uint32_t node);

  std::vector<bool> answered_;
  uint32_t missing_;
  bool taken_ = false;
  v1::StopStep step_;
};

}  // namespace cohort::launcher
