// Interleaved 1F1B (Narayanan et al. 2021): each rank has v stages, p apart. Micro-batches go in groups of p: a group
// passes one stage of the rank, then the next. The pipeline fills in stages of a v-th of the size.
//
//   idle share   (p-1) / (vm+p-1), where p divides m
//   activations  min(vm, 2(p-r-1) + (v-1)p + 1) stages on rank r, where p divides m
//
// If p does not divide m, the order is that of the next multiple, and the passes that do not exist are left out.
#include <algorithm>

#include "cohort/trainer/parallel/pipeline/schedule/registry.h"

namespace cohort::trainer {
namespace {

int WarmUp(const ScheduleRequest& request, int rank) {
  return 2 * (request.ranks - rank - 1) + (request.stages_per_rank() - 1) * request.ranks;
}

}  // namespace

std::vector<Action> OrderInterleaved(const ScheduleRequest& request, int rank) {
  const int ranks = request.ranks, laps = request.stages_per_rank();
  const int padded = (request.micro_batches + ranks - 1) / ranks * ranks;
  const int passes = padded * laps;
  std::vector<Action> order;
  // The pass number `at` of its direction.
  const auto add = [&](ActionKind kind, int at) {
    const int lap = at % (ranks * laps) / ranks;
    const int micro_batch = at / (ranks * laps) * ranks + at % ranks;
    const int stage = (kind == ActionKind::kForward ? lap : laps - 1 - lap) * ranks + rank;
    if (micro_batch < request.micro_batches) order.push_back({kind, stage, micro_batch});
  };
  const int ahead = std::min(passes, WarmUp(request, rank));
  for (int at = 0; at < ahead; ++at) add(ActionKind::kForward, at);
  for (int at = ahead; at < passes; ++at) {
    add(ActionKind::kForward, at);
    add(ActionKind::kBackward, at - ahead);
  }
  for (int at = passes - ahead; at < passes; ++at) add(ActionKind::kBackward, at);
  return order;
}

std::optional<Share> IdleOfInterleaved(const ScheduleRequest& request) {
  if (request.micro_batches % request.ranks != 0) return std::nullopt;
  return Share{request.ranks - 1, int64_t{request.micro_batches} * request.stages_per_rank() + request.ranks - 1};
}

std::optional<int> PeakOfInterleaved(const ScheduleRequest& request, int rank) {
  if (request.micro_batches % request.ranks != 0) return std::nullopt;
  return std::min(request.micro_batches * request.stages_per_rank(), WarmUp(request, rank) + 1);
}

}  // namespace cohort::trainer
