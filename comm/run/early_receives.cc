#include "cohort/comm/run/early_receives.h"

#include <algorithm>
#include <cstddef>

namespace cohort::comm {
namespace {

bool IsSend(const Step& step) { return step.kind == StepKind::kSend || step.kind == StepKind::kPublish; }
bool IsReceive(const Step& step) { return step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce; }

// Whether `receive` must not begin before `before` is done. Both read and write what their canonical slices say.
bool Conflict(const Step& before, const Step& receive) {
  return Overlap(before.dst, receive.dst) || Overlap(before.dst, receive.src) || Overlap(before.src, receive.dst) ||
         Overlap(before.src2, receive.dst);
}

// The same for a fold of own memory.
bool Conflict(const Plan& plan, const Step& fold, const Step& receive) {
  const PlanRequest request = RequestOf(plan);
  const auto touches = [&](const RankSlice& operand) {
    return Overlap(Canonical(operand.slice, request), receive.dst);
  };
  const auto writes = [&](const RankSlice& operand) { return Overlap(Canonical(operand.slice, request), receive.src); };
  const auto sources = SourcesOf(plan, fold);
  const auto targets = TargetsOf(plan, fold);
  return std::any_of(sources.begin(), sources.end(), touches) ||
         std::any_of(targets.begin(), targets.end(), [&](const auto& to) { return touches(to) || writes(to); });
}

}  // namespace

void MarkEarlyReceives(Plan* plan) {
  const PlanRequest request = RequestOf(*plan);
  const auto canonical = [&request](const Step& step) {
    Step copy = step;
    copy.src = Canonical(step.src, request);
    copy.src2 = Canonical(step.src2, request);
    copy.dst = Canonical(step.dst, request);
    return copy;
  };
  for (Lane& lane : plan->lanes) {
    std::vector<Step>& steps = lane.steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      Step& receive = steps[i];
      if (!IsReceive(receive)) continue;
      const Step own = canonical(receive);
      const auto most = static_cast<int32_t>(std::min<size_t>(i, kMostStepsAhead));
      while (receive.ahead < most) {
        const Step& before = steps[i - static_cast<size_t>(receive.ahead) - 1];
        const bool conflict = before.kind == StepKind::kFold ? Conflict(*plan, before, own)
                                                             : !IsSend(before) && Conflict(canonical(before), own);
        if (conflict) break;
        ++receive.ahead;
      }
    }
  }
}

}  // namespace cohort::comm
