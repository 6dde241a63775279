// Wall-clock time, for what people and other machines read.
#pragma once

#include <chrono>
#include <cstdint>

namespace cohort::launcher {

// Nanoseconds since 1970, UTC. Thread-safe; does not block.
inline uint64_t UnixTimeNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace cohort::launcher
