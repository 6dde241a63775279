#include "cohort/comm/algorithm/circulant.h"

#include <algorithm>

#include "cohort/comm/algorithm/pattern.h"

namespace cohort::comm {
namespace {

// Visits relative parts [first, first + count) as one or two ranges that do not wrap.
template <typename Visit>
void ForEachRange(const PlanRequest& request, int zero, int first, int count, const Visit& visit) {
  const int part = Modulo(request.rank - zero + first, request.size);
  const int until_wrap = std::min(count, request.size - part);
  visit(part, first, until_wrap);
  if (until_wrap < count) visit(0, first + until_wrap, count - until_wrap);
}

}  // namespace

void CirculantReduceScatter(PlanBuilder& builder, const PlanRequest& request, const PartsAt& in, const PartsAt& work,
                            const Slice& result, int zero) {
  const int size = request.size;
  for (int left = size; left > 1;) {  // relative parts [0, left) are not yet passed on
    const int skip = (left + 1) / 2;
    const int count = left - skip;
    const bool first_round = left == size;
    const PartsAt& from = first_round ? in : work;
    ForEachRange(request, zero, skip, count, [&](int part, int relative, int parts) {
      builder.Send(Modulo(request.rank + skip, size), from(part, relative, parts));
    });
    ForEachRange(request, zero, 0, count, [&](int part, int relative, int parts) {
      builder.RecvReduce(Modulo(request.rank - skip, size), left == 2 ? result : work(part, relative, parts),
                         from(part, relative, parts));
    });
    if (first_round && count < skip) {  // odd size: one part stays behind in this round
      const int part = Modulo(request.rank - zero + count, size);
      builder.Copy(work(part, count, 1), in(part, count, 1));
    }
    left = skip;
  }
}

void CirculantAllGather(PlanBuilder& builder, const PlanRequest& request, const Slice& own, const PartsAt& all,
                        int zero) {
  const int size = request.size;
  for (int have = 1; have < size;) {
    const int count = std::min(have, size - have);
    ForEachRange(request, zero, 0, count, [&](int part, int relative, int parts) {
      builder.Send(Modulo(request.rank - have, size), have == 1 ? own : all(part, relative, parts));
    });
    ForEachRange(request, zero, have, count, [&](int part, int relative, int parts) {
      builder.Recv(Modulo(request.rank + have, size), all(part, relative, parts));
    });
    have += count;
  }
}

}  // namespace cohort::comm
