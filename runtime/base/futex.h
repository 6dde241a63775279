// Sleeping on a 32-bit word, also across processes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include "cohort/runtime/base/deadline.h"

namespace cohort::runtime {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

// kShared words lie in memory that several processes map; kPrivate is cheaper.
enum class FutexScope { kPrivate = FUTEX_PRIVATE_FLAG, kShared = 0 };

// Sleeps while `word` holds `expected`, until FutexWake, a signal or the deadline. Callers check their condition again.
inline void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, FutexScope scope, Deadline deadline) {
  timespec timeout;
  const timespec* limit = nullptr;
  if (!deadline.infinite()) {
    const auto left = deadline.left().count();
    timeout.tv_sec = static_cast<time_t>(left / 1'000'000'000);
    timeout.tv_nsec = static_cast<long>(left % 1'000'000'000);  // NOLINT(google-runtime-int): the kernel's type
    limit = &timeout;
  }
  syscall(SYS_futex, &word, FUTEX_WAIT | static_cast<int>(scope), expected, limit, nullptr, 0);
}

// Wakes up to `count` sleepers.
inline void FutexWake(std::atomic<uint32_t>& word, FutexScope scope, int count = INT_MAX) {
  syscall(SYS_futex, &word, FUTEX_WAKE | static_cast<int>(scope), count, nullptr, nullptr, 0);
}

}  // namespace cohort::runtime
