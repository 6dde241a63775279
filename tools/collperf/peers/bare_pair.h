// The bare pair of a comparison: two ranks with nothing between them but flags, copies and sums, or a plain socket. It
// has no signatures, deadlines or failures, no sizes that differ and no third rank, so it shows about what the machine
// leaves to a system that moves messages in these ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort::collperf {

// One rank's part of one step. Both ranks name the same number of bytes for a direction; 0: nothing goes that way.
struct BareStep {
  const std::byte* send = nullptr;
  size_t send_bytes = 0;
  std::byte* receive = nullptr;
  size_t receive_bytes = 0;
  // Null: what comes is copied. Else float32, as many as are received, which are added to them.
  const std::byte* addend = nullptr;
  // Both ranks say so where only one sends and the other adds.
  bool one_way_sum = false;
  // The receiver's share of the work where only one sends and both can move the bytes. Both name the same.
  double taken = 0.5;
  // The beginning of the whole result: the sum goes to the same place of the other's whole result, too. Null: it does
  // not. For pairs whose TwinSums().
  std::byte* twin = nullptr;
  // A block that the rank copies within its own memory while it would wait.
  const std::byte* own_from = nullptr;
  std::byte* own_to = nullptr;
  size_t own_bytes = 0;
};

// Puts bytes that have arrived where the step wants them. `at` and `bytes` count received ones.
void TakeBytes(const BareStep& step, const std::byte* arrived, size_t at, size_t bytes);
// memcpy, from 1 MiB on past the cache.
void CopyBlock(std::byte* to, const std::byte* from, size_t bytes);

class BarePair {
 public:
  virtual ~BarePair() = default;
  // Carries the step out, blocking, and returns when this rank's buffers are its own again. Spins for ever. Between two
  // calls of a rank the other must have finished the first, or must send to it in the second: there is no other check
  // that what was sent has been taken.
  virtual void Run(const BareStep& step) = 0;
  // Whether a sum can be written to both ranks' memory at once, in the way in use.
  virtual bool TwinSums() const = 0;
  // The number of ways to carry a step out, and the choice of one, which both ranks make alike.
  virtual int ways(bool window) const = 0;
  virtual void UseWay(bool window, int way) = 0;
  // Returns the other rank's `value`, after both have called this.
  uint64_t Swap(uint64_t value);
  // Memory of this rank that the other can use in place, for `buffer` 0 or 1, until it is given back; null where there
  // is none of `bytes` bytes.
  virtual std::byte* Window(int buffer, size_t bytes) = 0;
  virtual void ReleaseWindows() = 0;
};

// Joins the two ranks that name the same folder, an empty one; each waits for the other.
absl::StatusOr<std::unique_ptr<BarePair>> JoinBareMemory(const std::string& folder, int rank);
absl::StatusOr<std::unique_ptr<BarePair>> JoinBareSockets(const std::string& folder, int rank);

// Leaves rank 0's text for rank 1, and waits for it there, 30 s at most.
absl::Status LeaveNote(const std::string& folder, const std::string& note);
absl::StatusOr<std::string> ReadNote(const std::string& folder);

// Ends this process, which has no other way out of a step, with the system's error on stderr.
[[noreturn]] void EndRank(const char* what);

}  // namespace cohort::collperf
