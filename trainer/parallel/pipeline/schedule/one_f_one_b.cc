// 1F1B (PipeDream-Flush, Narayanan et al. 2021): p-r-1 forward passes, then one forward and one backward pass in turn,
// so that a rank keeps the activations of as many micro-batches as there are ranks from it to the end.
//
//   idle share   (p-1) / (m+p-1)
//   activations  min(m, p-r) on rank r
#include <algorithm>

#include "cohort/trainer/parallel/pipeline/schedule/registry.h"

namespace cohort::trainer {

std::vector<Action> OrderOneFOneB(const ScheduleRequest& request, int rank) {
  const int ahead = std::min(request.micro_batches, request.ranks - rank - 1);
  std::vector<Action> order;
  for (int k = 0; k < ahead; ++k) order.push_back({ActionKind::kForward, rank, k});
  for (int k = ahead; k < request.micro_batches; ++k) {
    order.push_back({ActionKind::kForward, rank, k});
    order.push_back({ActionKind::kBackward, rank, k - ahead});
  }
  for (int k = request.micro_batches - ahead; k < request.micro_batches; ++k) {
    order.push_back({ActionKind::kBackward, rank, k});
  }
  return order;
}

std::optional<Share> IdleOfOneFOneB(const ScheduleRequest& request) {
  return Share{request.ranks - 1, request.micro_batches + request.ranks - 1};
}

std::optional<int> PeakOfOneFOneB(const ScheduleRequest& request, int rank) {
  return std::min(request.micro_batches, request.ranks - rank);
}

}  // namespace cohort::trainer
