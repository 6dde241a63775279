// RandomPlace: where in training this thread is, for random numbers that are functions of a place and not of a
// generator's state. They are the same on any mesh and in a recomputation.
//
//   set_random_place({.seed = seed, .step = step, .first_row = rank, .row_stride = ranks});   // before forward
#pragma once

#include <cstdint>

namespace cohort::trainer {

struct RandomPlace {
  uint64_t seed = 0;  // the same on all ranks
  int64_t step = -1;  // from 0 on; -1: not said, and nothing can be drawn
  int64_t micro_batch = 0;
  // The rows of the whole batch that this rank computes: first_row, first_row + row_stride, ...
  int64_t first_row = 0;
  int64_t row_stride = 1;

  bool known() const { return step >= 0; }
};

// Sets or returns the calling thread's place, which is not known until it is set. A step draws the same numbers again
// and again: set the place in each. checkpoint() and its backward pass keep that of the first forward pass.
// Schedules of several micro-batches set micro_batch before each forward pass.
void set_random_place(const RandomPlace& place);
RandomPlace random_place();

// How an activation lies in the whole. Dimension `batch_dim` counts rows of the batch, and random_place() says which.
// Dimension `cut_dim` has `whole` places, and this rank those from `begin` on. -1: no such dimension.
struct ActivationPart {
  int64_t batch_dim = 0;
  int64_t cut_dim = -1;
  int64_t begin = 0;
  int64_t whole = 0;
};

// While it lives, the thread is at `place`; afterwards where it was.
class [[nodiscard]] RandomPlaceGuard {
 public:
  explicit RandomPlaceGuard(const RandomPlace& place) : before_(random_place()) { set_random_place(place); }
  ~RandomPlaceGuard() { set_random_place(before_); }
  RandomPlaceGuard(const RandomPlaceGuard&) = delete;
  RandomPlaceGuard& operator=(const RandomPlaceGuard&) = delete;

 private:
  RandomPlace before_;
};

}  // namespace cohort::trainer
