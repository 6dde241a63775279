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

// False: there is no link or no short stream for the step's message, or none that takes it.
bool FindStreams(const InlineRun::LinkTo& link_to, BoundStep* step) {
  if (step->fanout == nullptr && step->link == nullptr) step->link = link_to(step->peer);
  Fanout* const fanout = step->fanout;
  if (fanout == nullptr && step->link == nullptr) return false;
  if (step->sends()) {
    step->sender = fanout != nullptr ? fanout->short_sender() : step->link->short_sender();
    return step->sender != nullptr && step->bytes <= step->sender->most_bytes();
  }
  step->receiver = fanout != nullptr ? fanout->short_receiver(step->peer) : step->link->short_receiver();
  return step->receiver != nullptr && step->bytes <= step->receiver->most_bytes();
}

}  // namespace

std::unique_ptr<InlineRun> InlineRun::Of(BoundPlan* plan, int divisor, const LinkTo& link) {
  if (plan->lanes() != 1 || plan->memory().unequal() || plan->memory().scratch_bytes() > kMostBytes) return nullptr;
  std::vector<BoundStep>& steps = plan->lane(0).steps;
  if (steps.size() > kMostSteps) return nullptr;
  size_t bytes = 0;
  for (BoundStep& step : steps) {
    bytes += step.bytes;
    const bool local = step.step->kind == StepKind::kReduce || step.step->kind == StepKind::kCopy;
    if (!local && ((!step.sends() && !step.receives()) || !FindStreams(link, &step))) return nullptr;
  }
  if (bytes > kMostBytes) return nullptr;
  return std::unique_ptr<InlineRun>(new InlineRun(plan, divisor));
}

InlineRun::InlineRun(BoundPlan* plan, int divisor)
    : plan_(*plan), lane_(plan->lane(0)), begin_(lane_.steps.data()), end_(lane_.end()), divisor_(divisor) {
  const PlanBinding& binding = plan->binding();
  const bool receives =
      std::any_of(lane_.steps.begin(), lane_.steps.end(), [](const BoundStep& step) { return step.receives(); });
  for (BoundStep& step : lane_.steps) {
    const bool prepares = !receives || step.bytes <= kMostPreparedInExchange;
    if (step.sender != nullptr && prepares) prepared_.push_back(&step);
    step.receive.bytes = step.bytes;
    if (step.receiver != nullptr) step.look_cost = step.receiver->look_cost();
    const bool calls_kernel = step.look_cost > 1 || (step.sender != nullptr && step.sender->calls_kernel());
    if (calls_kernel || step.bytes > kMostShortBytes) at_once_ = false;
    if (step.step->kind == StepKind::kRecvReduce) {
      step.receive.reduce = binding.kernel;
      step.receive.incoming_first = step.step->incoming_first;
      step.receive.count = step.bytes / binding.element_bytes;
    }
  }
}

// A rank that has nothing to send comes to its look sooner than one that has.
void InlineRun::WaitForOthers(const BoundStep& first) const {
  const int pauses = first.receiver->early_pauses() + (&first == begin_ ? 1 : 0);
  for (int i = 0; i < pauses; ++i) runtime::Pause();
}

void InlineRun::Divide() const {
  const PlanBinding& binding = plan_.binding();
  std::byte* const out = plan_.At({BufferId::kOut, 0});
  if (out != nullptr) DivideBy(binding.dtype, out, binding.count, divisor_);
}

bool InlineRun::Do(const BoundStep& step) {
  std::byte* const dst = plan_.At(step.dst);
  const std::byte* const src = plan_.At(step.src);
  const PlanBinding& binding = plan_.binding();
  if (step.sender != nullptr) {
    if (!step.sender->Send(src, step.bytes, *binding.call)) {
      takes_operation_ = step.bytes > kMostShortBytes && step.sender->TakesOperation();
      return false;
    }
    step.sender->Wake();
  } else if (step.step->kind == StepKind::kReduce) {
    binding.kernel(dst, src, plan_.At(step.src2), step.bytes / binding.element_bytes);
  } else if (step.bytes > 0 && dst != src) {
    std::memcpy(dst, src, step.bytes);
  }
  return true;
}

}  // namespace cohort::comm
