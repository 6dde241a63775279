// GPipe (Huang et al. 2019): all forward passes, then all backward passes.
//
//   idle share   (p-1) / (m+p-1)
//   activations  m
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"

namespace cohort::trainer {

std::vector<Action> OrderGPipe(const ScheduleRequest& request, int rank) {
  std::vector<Action> order;
  for (int k = 0; k < request.micro_batches; ++k) order.push_back({ActionKind::kForward, rank, k});
  for (int k = 0; k < request.micro_batches; ++k) order.push_back({ActionKind::kBackward, rank, k});
  return order;
}

std::optional<Share> IdleOfGPipe(const ScheduleRequest& request) {
  return Share{request.ranks - 1, request.micro_batches + request.ranks - 1};
}

std::optional<int> PeakOfGPipe(const ScheduleRequest& request, int /*rank*/) { return request.micro_batches; }

}  // namespace cohort::trainer
