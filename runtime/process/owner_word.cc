#include "cohort/runtime/process/owner_word.h"

#include <thread>

#include "cohort/runtime/process/process_stat.h"

namespace cohort::runtime {
namespace {

bool HasEnded(pid_t pid) {
  const std::optional<ProcessState> state = ReadProcessState(pid);
  return !state.has_value() || state->ended();
}

}  // namespace

std::optional<uint64_t> OwnerWord::Claim(pid_t guest, Deadline deadline) const {
  // The claim counts at once: a guest that writes without a pause would leave no moment for it.
  const uint64_t owner = word_.fetch_add(kOwner, std::memory_order_seq_cst) / kOwner + 1;
  while ((Look() & kWriting) != 0) {
    std::this_thread::yield();
    if ((Look() & kWriting) == 0) break;
    if (HasEnded(guest)) {
      End();
    } else if (deadline.passed()) {
      return std::nullopt;
    }
  }
  return owner;
}

std::optional<uint64_t> OwnerWord::ClaimSince(uint64_t look) const {
  uint64_t expected = look;
  if ((look & kWriting) != 0) return std::nullopt;
  if (!word_.compare_exchange_strong(expected, look + kOwner, std::memory_order_seq_cst)) return std::nullopt;
  return look / kOwner + 1;
}

bool OwnerWord::Begin(uint64_t owner) const {
  uint64_t expected = owner * kOwner;
  return word_.compare_exchange_strong(expected, expected + kWriting, std::memory_order_acquire,
                                       std::memory_order_relaxed);
}

}  // namespace cohort::runtime
