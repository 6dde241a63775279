// DelayedCollectives: holds the trainer's collective calls back, as an observer of them.
//
//   const DelayedCollectives delayed;
//   ... train: every transfer is now done as late as its contract allows ...
//
//             call                                   Wait
//   usually   ├── in is read, out is written ... ────┤   at some time in between
//   delayed   │ in is copied, out filled with 0xFF   ├── in as it was? out untouched? ── transfer ──┤
//
// A program may change an input, give its memory to something else, or use an output before it has waited. It may be
// lucky for years. Here it fails: its Wait says which call was wronged and where, or it computes with 0xFF bytes. These
// are no number in every floating-point type and -1 in integers. PyTorch's FSDP had such bugs for months, in which
// gradients were silently wrong. Research on them found that only delays before every collective show them.
#pragma once

#include <cstdint>

#include "cohort/trainer/transfer/call_observer.h"

namespace cohort::trainer {

// While one lives, the calls of collectives.h hold their transfers of host memory back, in all threads. CUDA memory
// moves as usual. A Wait first starts its thread's earlier calls, in their order, and nothing later. All ranks must use
// it alike. They must call collectives of different groups in the same order, as the trainer does.
//
// Works fail with kFailedPrecondition when a buffer was reused too early. Their group is then aborted, so that the
// other ranks fail too.
class [[nodiscard]] DelayedCollectives {
 public:
  DelayedCollectives();
  // Starts the calls that no thread has waited for.
  ~DelayedCollectives();
  DelayedCollectives(const DelayedCollectives&) = delete;
  DelayedCollectives& operator=(const DelayedCollectives&) = delete;

  // The number of collectives held back since this was made.
  int64_t calls() const;

 private:
  int64_t before_;
};

}  // namespace cohort::trainer
