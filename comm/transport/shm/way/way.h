// The ways of private messages between two ranks of a host, and the classes of lengths by which they are told apart.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::comm::shm {

// kCopied: copied through memory that both ranks share. kPastCache: the same with stores that bypass the writer's
// cache. kRead: read by the receiver with process_vm_readv.
enum class Way : uint8_t { kCopied = 0, kPastCache = 1, kRead = 2 };
inline constexpr size_t kWays = 3;

// From here on copies may go past the cache. Shorter messages lie in few lines.
inline constexpr size_t kPastCacheFrom = 1024;

// Messages below 6 KiB, up to 32 KiB, below 512 KiB, below 2 MiB, below 8 MiB, and longer ones, which no cache holds.
// Reads of 4 MiB take three times as long for a byte as those of 512 KiB, so that these have times of their own.
inline constexpr size_t kWaySizes = 6;
constexpr size_t WaySizeOf(size_t bytes) {
  if (bytes < (512 << 10)) return bytes < (6 << 10) ? 0 : bytes <= (32 << 10) ? 1 : 2;
  return bytes < (2 << 20) ? 3 : bytes < (8 << 20) ? 4 : 5;
}
// The length of a run of the shortest ones, which go the same way. One of them is timed, which costs 60 ns.
inline constexpr uint32_t kShortRun = 16;

}  // namespace cohort::comm::shm
