// A word in shared memory that says which process may write to what lies beside it. There is one owner at a time. A
// guest is an owner that agrees to lose it between two writes; others write without the word. It counts the owners, and
// says whether a guest writes just now:
//
//   owner n, idle ── Begin(n) ──► owner n, writing ── End ──► owner n, idle
//        └── Claim ──► owner n + 1, idle      └── Claim ──► owner n + 1, writing ── End of n ──► owner n + 1, idle
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "cohort/runtime/base/deadline.h"

namespace cohort::runtime {

// Any thread of any process. `word` is 0 at first and outlives it.
class OwnerWord {
 public:
  explicit OwnerWord(std::atomic<uint64_t>* word) : word_(*word) {}

  // Becomes the owner, and returns the number of this one. Waits for the write of a guest, whose process is `guest`; if
  // that has ended its write is over. Nothing: the write has not ended by the deadline; the guest begins no other.
  std::optional<uint64_t> Claim(pid_t guest, Deadline deadline) const;
  // A state of the word for ClaimSince.
  uint64_t Look() const { return word_.load(std::memory_order_seq_cst); }
  // The same by compare-exchange: nothing where there has been another owner since that look, or a guest writes. Does
  // not wait.
  std::optional<uint64_t> ClaimSince(uint64_t look) const;
  // Ends the ownership. A write that goes on is not waited for.
  void Revoke() const { word_.fetch_add(kOwner, std::memory_order_acq_rel); }

  // --- a guest, around each write ---

  // False: there is another owner, for good.
  bool Begin(uint64_t owner) const;
  void End() const { word_.fetch_and(~kWriting, std::memory_order_release); }
  // Whether Begin would have succeeded just now.
  bool Is(uint64_t owner) const { return word_.load(std::memory_order_relaxed) / kOwner == owner; }

 private:
  static constexpr uint64_t kWriting = 1;
  static constexpr uint64_t kOwner = 2;  // one owner

  std::atomic<uint64_t>& word_;
};

}  // namespace cohort::runtime
