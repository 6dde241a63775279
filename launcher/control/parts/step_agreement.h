// On which step a preempted job stops: the first one that no rank has begun.
//
//   rank 0  ── step 7 ──┬─ runs 7 ──┐ begins 8, waits ────────┐ runs 8 ──┐ 9: stops
//   rank 1  ── step 8 ──┬─ runs 8 (waits in its calls for 0) ─┤ ends 8 ──┘ 9: stops
//   rank 2  ── step 7 ──┬─ runs 7 ──┐ begins 8, waits ────────┘ runs 8 ──┘ 9: stops
//                    notice: all answer at once          max = 9
//                       8, 9, 8
//
// A rank answers as soon as it hears, also within a step, with the number that all steps it has begun are below, and
// begins no other until the greatest number is known. Were the answer to wait for its next step it might never come:
// a step's calls need every rank, and another that heard a moment earlier does not begin it. Two messages a node,
// whatever the number of ranks: its agent adds them up.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class StepAgreement {
 public:
  explicit StepAgreement(uint32_t nodes) : answered_(nodes, false), missing_(nodes) {}

  // Counts a node's answer. Only the first one of a node counts.
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
