// The floor of a comparison: two ranks with nothing between them but what the machine itself needs for a message. No
// signatures, no deadlines, no failures, no sizes that differ, no third rank: what is left to any implementation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort::bench {

// One rank's part of one step. Both ranks name the same number of bytes for a direction; 0: nothing goes that way.
struct BareStep {
  const std::byte* send = nullptr;
  size_t send_bytes = 0;
  std::byte* receive = nullptr;
  size_t receive_bytes = 0;
  const std::byte* addend = nullptr;  // float32, of the received ones' size, to which they are added; null: copied
  bool one_way_sum = false;           // the sender's word for: only the other receives, and adds
  // The beginning of the whole result: the sum goes to the same place of the other's whole result, too. Null: it does
  // not. For pairs whose TwinSums().
  std::byte* twin = nullptr;
};

// Puts bytes that have arrived where the step wants them. `at` and `bytes`: of the received ones.
void TakeBytes(const BareStep& step, const std::byte* arrived, size_t at, size_t bytes);

class BarePair {
 public:
  virtual ~BarePair() = default;
  // Carries the step out, blocking, and returns when this rank's buffers are its own again. Spins for ever.
  virtual void Run(const BareStep& step) = 0;
  // Whether a sum can be written to both ranks' memory at once.
  virtual bool TwinSums() const = 0;
  // How many ways there are to carry a step out, and the choice of one, which both ranks make alike.
  virtual int ways(bool window) const = 0;
  virtual void UseWay(bool window, int way) = 0;
  // The other rank's `value`, after both have called this.
  virtual uint64_t Swap(uint64_t value) = 0;
  // Memory of this rank that the other can use in place, for `buffer` 0 or 1; null where there is none. Until it is
  // given back.
  virtual std::byte* Window(int buffer) = 0;
  virtual void ReleaseWindows() = 0;
};

// `folder` is where the two find each other; neither is there before the other has been asked for as well.
absl::StatusOr<std::unique_ptr<BarePair>> JoinBareMemory(const std::string& folder, int rank);
absl::StatusOr<std::unique_ptr<BarePair>> JoinBareSockets(const std::string& folder, int rank);

// The text that rank 0 left for rank 1 in `folder` (30 s at most), and what leaves it.
absl::StatusOr<std::string> ReadNote(const std::string& folder);
absl::Status LeaveNote(const std::string& folder, const std::string& note);

}  // namespace cohort::bench
