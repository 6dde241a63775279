// A stream's state of an operation, in the one pointer that the operation has for it.
#pragma once

#include <cstdint>

namespace cohort::comm::shm {

enum class Phase : uint8_t {
  kNew = 0,      // never tried
  kWaiting = 1,  // value: its place in the order
  kMoving = 2,   // its turn has come and some of it is in the stream
  kPosted = 3,   // value: the message that must be confirmed
};

struct OperationState {
  Phase phase = Phase::kNew;
  uint64_t value = 0;

  static OperationState Load(const void* state) {
    const auto word = reinterpret_cast<uintptr_t>(state);
    return {static_cast<Phase>(word & 3), word >> 2};
  }
  void Store(void*& state) const {
    state = reinterpret_cast<void*>(value << 2 | static_cast<uintptr_t>(phase));  // NOLINT: a number, not an address
  }
};

}  // namespace cohort::comm::shm
