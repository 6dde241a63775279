#include "cohort/launcher/control/parts/step_agreement.h"

#include <algorithm>
#include <utility>

namespace cohort::launcher {

// False where the node has been counted.
bool StepAgreement::Check(uint32_t node) {
  if (node >= answered_.size() || answered_[node]) return false;
  answered_[node] = true;
  --missing_;
  return true;
}

void StepAgreement::Answer(uint32_t node, const v1::NodeStep& step) {
  if (!Check(node)) return;
  step_.set_step(std::max(step_.step(), step.step()));
  step_.set_none(step_.none() || step.left());
}

void StepAgreement::DoWithout(uint32_t node) { Check(node); }

std::optional<v1::StopStep> StepAgreement::Take() {
  if (missing_ > 0 || std::exchange(taken_, true)) return std::nullopt;
  return step_;
}

}  // namespace cohort::launcher
