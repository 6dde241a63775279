// The circulant pattern: in each round every rank sends to the rank `skip` places on and receives from the one as far
// back, with skips that halve (rounded up) from the size to 1. Reduce-scatter and all-gather in ceil(log2 p) rounds
// with the least volume, for every size (Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024;
// the all-gather is Bruck's).
//
// Parts are counted from the own rank: relative part i of rank r is part (r + i) modulo p. A range of parts that wraps
// past the last part travels as two messages, because it lies in two places. Rooted operations count ranks and parts
// from `zero`, the rank that part 0 belongs to.
#pragma once

#include <functional>

#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

// The slice of `count` parts from `part` on, none beyond the last part; `relative` is the first one's relative number.
using PartsAt = std::function<Slice(int part, int relative, int count)>;

// Leaves the reduction of relative part 0 in `result`. `in` holds the own contributions; `work` is room for the
// relative parts [0, (p+1)/2), which may be the same memory as the own contributions in the sense of
// PlanBuilder::Aliased, part by part. For sizes from 2 on.
void CirculantReduceScatter(PlanBuilder& builder, const PlanRequest& request, const PartsAt& in, const PartsAt& work,
                            const Slice& result, int zero = 0);

// Fills `all` with every rank's part. `own` is the own part, already in its place or not: it is only sent from.
void CirculantAllGather(PlanBuilder& builder, const PlanRequest& request, const Slice& own, const PartsAt& all,
                        int zero = 0);

}  // namespace cohort::comm
