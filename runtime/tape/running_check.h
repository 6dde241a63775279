// A hash of all entries of a tape's file so far.
#pragma once

#include <array>
#include <cstdint>

#include "cohort/runtime/tape/memory_hash.h"

namespace cohort::runtime {

class RunningCheck {
 public:
  // An entry with this hash has come. Returns the check of the file up to its end. The first is a hash of the first
  // entry alone, in every format: so the head of a tape that another version wrote can be read.
  uint32_t Add(uint64_t entry) {
    const std::array<uint64_t, 2> both{state_, entry};
    state_ = state_ == 0 ? entry : HashMemory(both.data(), sizeof both);
    return static_cast<uint32_t>(state_);
  }

 private:
  uint64_t state_ = 0;  // 0: nothing has come
};

}  // namespace cohort::runtime
