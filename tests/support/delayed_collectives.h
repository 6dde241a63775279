// DelayedCollectives: holds the trainer's collective calls back, as an observer of them.
//
//   const DelayedCollectives delayed;
//   ... train: every transfer is now done as late as its contract allows ...
//
//             call                                   Wait
//   usually   ├── in is read, out is written ... ────┤   at some time in between
//   delayed   │ in is copied, out filled with 0xFF   ├── in as it was? out untouched? ── transfer ──┤
//
// A program that changes an input, gives its memory to something else, or uses an output before it has waited may be
// lucky for years. Here it fails: its Wait says which call of it was wronged and where, or it computes with 0xFF bytes,
// which are no number in every floating-point type and -1 in integers. (PyTorch's FSDP has had such bugs for months in
// which gradients were wrong without a word: research on them found that only delays before every collective show
// them.)
#pragma once

#include <cstdint>

#include "cohort/trainer/transfer/call_observer.h"

namespace cohort::trainer {

// While one lives, the calls of collectives.h hold their transfers of host memory back, in all threads; CUDA memory
// moves as usual. A Wait first starts what its thread has called before, in that order, and nothing later. All ranks
// must do it alike, and call collectives of different groups in the same order, as the trainer does.
//
// Works fail with kFailedPrecondition when a buffer was reused too early; their group is aborted then, so that the
// other ranks hear of it.
class [[nodiscard]] DelayedCollectives {
 public:
  DelayedCollectives();
  // Starts what nobody has waited for.
  ~DelayedCollectives();
  DelayedCollectives(const DelayedCollectives&) = delete;
  DelayedCollectives& operator=(const DelayedCollectives&) = delete;

  // Collectives that were held back since this was made.
  int64_t calls() const;

 private:
  int64_t before_;
};

}  // namespace cohort::trainer
