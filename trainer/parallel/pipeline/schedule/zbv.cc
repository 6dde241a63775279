// ZBV (Qi et al. 2024): rank r has stages r and 2p-1-r, so that the last stage lies beside the first and its backward
// passes start at once. Backward passes are in two parts. After the pipeline is full no rank waits, where F, I and W
// take the same time.
//
//   idle share   (p-1) / (6m+p-1), where m >= 2p-1
//   activations  min(2m, 2p) stages, where m >= 2p-1: those of p micro-batches
//
// With fewer than 2p-1 micro-batches the order is that of 2p-1, and the passes that do not exist are left out.
#include <algorithm>
#include <array>

#include "cohort/trainer/parallel/pipeline/schedule/registry.h"

namespace cohort::trainer {
namespace {

// Adds passes of a rank's two stages: 0 on the way out, 1 on the way back.
class Passes {
 public:
  Passes(const ScheduleRequest& request, int rank)
      : micro_batches_(request.micro_batches), stages_{rank, 2 * request.ranks - 1 - rank} {}

  int forward(int lap) const { return done_[0][static_cast<size_t>(lap)]; }
  int weight(int lap) const { return done_[2][static_cast<size_t>(lap)]; }
  void F(int lap) { Add(ActionKind::kForward, 0, lap); }
  void I(int lap) { Add(ActionKind::kInputGradient, 1, lap); }
  void W(int lap) { Add(ActionKind::kWeightGradient, 2, lap); }
  std::vector<Action> Take() { return std::move(order_); }

 private:
  void Add(ActionKind kind, size_t row, int lap) {
    const int micro_batch = done_[row][static_cast<size_t>(lap)]++;
    if (micro_batch < micro_batches_) order_.push_back({kind, stages_[static_cast<size_t>(lap)], micro_batch});
  }

  int micro_batches_;
  std::array<int, 2> stages_;
  std::array<std::array<int, 2>, 3> done_{};  // F, I, W by lap
  std::vector<Action> order_;
};

}  // namespace

std::vector<Action> OrderZbv(const ScheduleRequest& request, int rank) {
  const int ranks = request.ranks, after = ranks - rank;
  const int padded = std::max(request.micro_batches, 2 * ranks - 1);
  Passes passes(request, rank);
  for (int k = 0; k < 2 * after - 1; ++k) passes.F(0);
  for (int k = 0; k < rank; ++k) {
    passes.F(1);
    passes.F(0);
  }
  for (int k = 0; k < after; ++k) {
    passes.F(1);
    passes.I(1);
    passes.W(1);
  }
  while (passes.forward(1) < padded) {
    if (passes.forward(0) < padded) passes.F(0);
    passes.I(0);
    passes.W(0);
    passes.F(1);
    passes.I(1);
    passes.W(1);
  }
  for (int k = 0; k < rank; ++k) {
    passes.I(0);
    passes.I(1);
  }
  for (int k = 0; k < after; ++k) {
    passes.I(0);
    passes.W(0);
  }
  while (passes.weight(1) < padded) passes.W(1);
  while (passes.weight(0) < padded) passes.W(0);
  return passes.Take();
}

std::optional<Share> IdleOfZbv(const ScheduleRequest& request) {
  if (request.micro_batches < 2 * request.ranks - 1) return std::nullopt;
  return Share{request.ranks - 1, 6 * int64_t{request.micro_batches} + request.ranks - 1};
}

std::optional<int> PeakOfZbv(const ScheduleRequest& request, int /*rank*/) {
  if (request.micro_batches < 2 * request.ranks - 1) return std::nullopt;
  return 2 * std::min(request.micro_batches, request.ranks);
}

}  // namespace cohort::trainer
