// ZB-H1 (Qi et al. 2023, zero bubble): 1F1B whose backward passes are in two parts. Rank r puts each W off by r
// micro-batches, so that W fills the time in which 1F1B waits. It keeps no more activations than 1F1B's first rank.
//
//   idle share   (p-1) / (3m+p-1), where m >= p
//   activations  min(m, p)
#include <algorithm>

#include "cohort/trainer/parallel/pipeline/schedule/registry.h"

namespace cohort::trainer {

std::vector<Action> OrderZbH1(const ScheduleRequest& request, int rank) {
  const int ahead = std::min(request.micro_batches, request.ranks - rank - 1);
  std::vector<Action> order;
  for (int k = 0; k < ahead; ++k) order.push_back({ActionKind::kForward, rank, k});
  for (int k = 0; k < request.micro_batches; ++k) {
    if (k + ahead < request.micro_batches) order.push_back({ActionKind::kForward, rank, k + ahead});
    order.push_back({ActionKind::kInputGradient, rank, k});
    if (k >= rank) order.push_back({ActionKind::kWeightGradient, rank, k - rank});
  }
  for (int k = std::max(0, request.micro_batches - rank); k < request.micro_batches; ++k) {
    order.push_back({ActionKind::kWeightGradient, rank, k});
  }
  return order;
}

std::optional<Share> IdleOfZbH1(const ScheduleRequest& request) {
  if (request.micro_batches < request.ranks) return std::nullopt;
  return Share{request.ranks - 1, 3 * int64_t{request.micro_batches} + request.ranks - 1};
}

std::optional<int> PeakOfZbH1(const ScheduleRequest& request, int /*rank*/) {
  return std::min(request.micro_batches, request.ranks);
}

}  // namespace cohort::trainer
