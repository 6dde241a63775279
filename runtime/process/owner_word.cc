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
  while (true) {
    const uint64_t look = Look();
    if (const std::optional<uint64_t> owner = ClaimSince(look)) return owner;
    std::this_thread::yield();
    if ((look & kWriting) == 0 || Look() != look) continue;
    if (HasEnded(guest)) {
      uint64_t expected = look;
      word_.compare_exchange_strong(expected, look - kWriting, std::memory_order_acq_rel);
    } else if (deadline.passed()) {
      return std::nullopt;
    }
  }
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
