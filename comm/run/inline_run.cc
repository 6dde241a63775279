#include "cohort/comm/run/inline_run.h"

#include <algorithm>
#include <cstring>

#include "cohort/comm/reduce/reduce.h"

namespace cohort::comm {
namespace {

constexpr size_t kMostSteps = 64;
// Bytes of all steps together: the engine's owner does nothing else meanwhile.
constexpr size_t kMostBytes = 64 * 1024;
// Longer messages are not prepared where both sides have one: each would fetch lines while the other still reads (1
// KiB, far, 1.06 us instead of 0.90; 512 B 0.46 instead of 0.66).
constexpr size_t kMostPreparedInExchange = 512;

// False: there is no link for the step's message, or it is not used inline.
bool FindLink(const InlineRun::LinkTo& link_to, BoundStep* step, InlineTerms* terms) {
  if (step->fanout == nullptr && step->link == nullptr) step->link = link_to(step->peer);
  if (step->fanout == nullptr && step->link == nullptr) return false;
  *terms = step->fanout != nullptr ? step->fanout->inline_terms() : step->link->inline_terms();
  step->look_cost = terms->look_cost;
  return terms->most_bytes > 0 && step->bytes <= terms->most_bytes;
}

}  // namespace

std::unique_ptr<InlineRun> InlineRun::Of(BoundPlan* plan, int divisor, const LinkTo& link) {
  if (plan->lanes() != 1 || plan->memory().scratch_bytes() > kMostBytes) return nullptr;
  std::vector<BoundStep>& steps = plan->lane(0).steps;
  if (steps.size() > kMostSteps) return nullptr;
  size_t bytes = 0;
  bool at_once = true;
  for (BoundStep& step : steps) {
    bytes += step.bytes;
    InlineTerms terms;
    const bool local = step.kind == StepKind::kReduce || step.kind == StepKind::kCopy;
    if (!local && ((!step.sends() && !step.receives()) || !FindLink(link, &step, &terms))) return nullptr;
    if (terms.calls_kernel || step.bytes > kMostShortBytes) at_once = false;
  }
  if (bytes > kMostBytes) return nullptr;
  return std::unique_ptr<InlineRun>(new InlineRun(plan, divisor, at_once));
}

InlineRun::InlineRun(BoundPlan* plan, int divisor, bool at_once)
    : plan_(*plan),
      lane_(plan->lane(0)),
      begin_(lane_.steps.data()),
      opened_(std::find_if_not(begin_, lane_.end(), [](const BoundStep& step) { return step.sends(); })),
      end_(lane_.end()),
      divisor_(divisor),
      at_once_(at_once) {
  const bool receives =
      std::any_of(lane_.steps.begin(), lane_.steps.end(), [](const BoundStep& step) { return step.receives(); });
  for (const BoundStep& step : lane_.steps) {
    if (step.sends() && (!receives || step.bytes <= kMostPreparedInExchange)) prepared_.push_back(&step);
  }
}

void InlineRun::Divide() const {
  const PlanBinding& binding = plan_.binding();
  std::byte* const out = plan_.At({BufferId::kOut, 0});
  if (out != nullptr) DivideBy(binding.dtype, out, BlockCount(binding.count, binding.blocks), divisor_);
}

bool InlineRun::RunLocal(const BoundStep& step) {
  std::byte* const dst = plan_.At(step.dst);
  const std::byte* const src = plan_.At(step.src);
  const PlanBinding& binding = plan_.binding();
  if (step.kind == StepKind::kReduce) {
    binding.kernel(dst, src, plan_.At(step.src2), step.bytes / binding.element_bytes);
  } else if (step.bytes > 0 && dst != src) {
    std::memcpy(dst, src, step.bytes);
  }
  return true;
}

}  // namespace cohort::comm
