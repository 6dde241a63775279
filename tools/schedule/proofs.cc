#include "tools/schedule/proofs.h"

#include <cstdio>
#include <numeric>
#include <optional>
#include <utility>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/trainer/parallel/pipeline/schedule/checker.h"
#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"

namespace cohort::tools {
namespace {

using trainer::ScheduleInfo;
using trainer::ScheduleRequest;
using trainer::Share;

absl::Status ProveOne(const ScheduleInfo& info, const ScheduleRequest& request) {
  COHORT_ASSIGN_OR_RETURN(const trainer::Schedule schedule, BuildSchedule(info.name, request));
  COHORT_ASSIGN_OR_RETURN(const trainer::ScheduleReport report, CheckSchedule(schedule));
  for (int rank = 0; rank < request.ranks; ++rank) {
    const std::optional<int> peak = info.peak(request, rank);
    const int found = report.peak_activations[static_cast<size_t>(rank)];
    if (peak && *peak != found) {
      return absl::InternalError("rank " + std::to_string(rank) + " keeps " + std::to_string(found) +
                                 " activations, not the " + std::to_string(*peak) + " of the formula");
    }
  }
  COHORT_ASSIGN_OR_RETURN(const trainer::Timing timing, SimulateSchedule(schedule, trainer::Costs()));
  const std::optional<Share> idle = info.idle(request);
  const Share found = timing.idle();
  if (idle && idle->part * found.whole != found.part * idle->whole) {
    return absl::InternalError("the idle share is " + ToText(found) + ", not the " + ToText(*idle) + " of the formula");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Range> ReadRange(const std::string& text, int most) {
  Range range;
  char rest = 0;
  const int read = std::sscanf(text.c_str(), "%d-%d%c", &range.first, &range.last, &rest);
  const bool one = read == 1 && text.find_first_not_of("0123456789") == std::string::npos;
  if (one) range.last = range.first;
  if ((!one && read != 2) || range.first < 1 || range.last < range.first || range.last > most) {
    return absl::InvalidArgumentError("needs a number or a range of 1 to " + std::to_string(most) +
                                      ", such as 4 or 1-" + std::to_string(std::min(most, 16)) + ", not \"" +
                                      text.substr(0, 32) + "\"");
  }
  return range;
}

absl::StatusOr<int> ProveSchedule(const ScheduleInfo& info, Range ranks, Range micro_batches, int stages_per_rank) {
  int proofs = 0;
  for (int p = ranks.first; p <= ranks.last; ++p) {
    for (int m = micro_batches.first; m <= micro_batches.last; ++m) {
      const absl::Status status = ProveOne(info, {p, p * stages_per_rank, m});
      if (!status.ok()) {
        return absl::Status(status.code(), std::string(info.name) + ", " + std::to_string(p) + " ranks, " +
                                               std::to_string(p * stages_per_rank) + " stages, " + std::to_string(m) +
                                               " micro-batches: " + std::string(status.message()));
      }
      ++proofs;
    }
  }
  return proofs;
}

std::string ToText(const Share& share) {
  const int64_t divisor = std::max<int64_t>(1, std::gcd(share.part, share.whole));
  return std::to_string(share.part / divisor) + "/" + std::to_string(share.whole / divisor);
}

}  // namespace cohort::tools
