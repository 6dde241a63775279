// Finds the short way of a plan: its steps with lengths, places and streams resolved.
#pragma once

#include <functional>
#include <memory>

#include "cohort/comm/plan/plan.h"
#include "cohort/comm/provider/short_call.h"
#include "cohort/comm/run/plan_binding.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm {

// The links of the plan's lane; each outlives the short call. Null where there is none.
struct ShortLinks {
  int rank = 0;
  int size = 1;
  std::function<Link*(int peer)> link;
  std::function<Fanout*()> fanout;
};

// Null: the plan has no short way. It has one lane of few steps, no direct step, and every link has streams that take
// its messages as short ones. The binding's buffers need not be there any more. `divisor`: the output is divided by
// it in the end, for averages.
std::unique_ptr<ShortCall> ShortenPlan(const Plan& plan, const PlanBinding& binding, int divisor,
                                       const ShortLinks& links);

}  // namespace cohort::comm
