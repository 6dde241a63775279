#include "tools/measure/gate.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "cohort/runtime/base/cpu_budget.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::measure {
namespace {

constexpr std::chrono::minutes kPatience{2};
constexpr int kYieldsBeforeIdle = 64;  // tens of microseconds: longer than ranks need that arrive together

}  // namespace

int GateSpins(int ranks) { return runtime::Oversubscribed(ranks) ? 20 : 2000; }

absl::Status SharedMemoryGate::Wait() {
  const uint64_t all = ++gates_ * static_cast<uint64_t>(ranks_);
  if (memory_->arrivals.fetch_add(1, std::memory_order_acq_rel) + 1 >= all) return absl::OkStatus();
  for (int i = 0; i < spins_; ++i) {
    if (memory_->arrivals.load(std::memory_order_acquire) >= all) return absl::OkStatus();
  }
  const runtime::Deadline deadline = runtime::Deadline::After(kPatience);
  for (int yields = 1; memory_->arrivals.load(std::memory_order_acquire) < all; ++yields) {
    sched_yield();
    if (yields % kYieldsBeforeIdle != 0) continue;
    if (absl::Status status = Idle(); !status.ok()) return status;
    if (memory_->broken.load(std::memory_order_acquire) != 0) {
      return absl::AbortedError("another rank has given up");
    }
    if (deadline.passed()) return absl::DeadlineExceededError("the other ranks did not come to the benchmark's gate");
  }
  return absl::OkStatus();
}

template <typename Combine>
absl::Status SharedMemoryGate::Reduce(std::span<uint64_t> numbers, Combine combine) {
  if (numbers.size() > kMostNumbers) return absl::InvalidArgumentError("too many numbers for a benchmark's gate");
  std::copy(numbers.begin(), numbers.end(), memory_->rows[rank_].numbers);
  if (absl::Status status = Wait(); !status.ok()) return status;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = combine(numbers[i], memory_->rows[rank].numbers[i]);
    }
  }
  return Wait();  // nobody overwrites what others still read
}

absl::StatusOr<double> SharedMemoryGate::FlagNs() {
  if (ranks_ < 2) return 0.0;
  if (absl::Status status = Wait(); !status.ok()) return status;
  uint64_t picoseconds = 0;
  if (rank_ < 2) {
    const runtime::Deadline deadline = runtime::Deadline::After(kPatience);
    absl::Status idle;
    flag_.set_give_up([&] {
      idle = Idle();
      return !idle.ok() || memory_->broken.load(std::memory_order_acquire) != 0 || deadline.passed();
    });
    picoseconds = static_cast<uint64_t>(flag_.Measure() * 1000);
    if (!idle.ok()) return idle;
  }
  if (absl::Status status = Max(std::span(&picoseconds, 1)); !status.ok()) return status;
  return static_cast<double>(picoseconds) / 1000;
}

absl::Status SharedMemoryGate::Max(std::span<uint64_t> numbers) {
  return Reduce(numbers, [](uint64_t a, uint64_t b) { return std::max(a, b); });
}

absl::Status SharedMemoryGate::Sum(std::span<uint64_t> numbers) {
  return Reduce(numbers, [](uint64_t a, uint64_t b) { return a + b; });
}

}  // namespace cohort::measure
