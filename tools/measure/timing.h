// The loop of every benchmark of collectives: the check on fresh data, the warm-up, and one timed call behind the gate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/measure/gate.h"
#include "tools/measure/pattern.h"

namespace cohort::measure {

// A call that is measured, again and again on the same memory.
class MeasuredCall {
 public:
  // This rank's buffers as the host sees them; of no bytes where it has none.
  struct Memory {
    void* in = nullptr;
    size_t in_bytes = 0;
    void* out = nullptr;
    size_t out_bytes = 0;
  };
  virtual ~MeasuredCall() = default;
  // Makes `calls` calls one after the other, and returns when the results are there.
  virtual absl::Status Run(int64_t calls) const = 0;
  // Brings what the host wrote to where the call finds it, and the result back. Nothing to do on host memory.
  virtual absl::Status Upload() const { return absl::OkStatus(); }
  virtual absl::Status Download() const { return absl::OkStatus(); }
  virtual Memory memory() const = 0;
};

struct Timing {
  int64_t batch = 1;     // calls between two gates; a sample is their mean
  int64_t messages = 1;  // of a call, of which a sample is the mean too
  bool rewrite = false;  // every rank writes its input again before each sample
};

// All functions are collective.

// Wrong elements of this rank's results in untimed calls, each on data of its own. `spoil` damages one element first.
absl::StatusOr<int64_t> CountWrongOf(const MeasuredCall& call, Pattern pattern, Gate& gate, bool spoil = false);
// A sample of this rank, in picoseconds.
absl::StatusOr<uint64_t> TimeOnce(const MeasuredCall& call, const Timing& timing, Gate& gate);

// Samples of the slowest rank, in picoseconds; 0 where there was none.
struct Pace {
  double mean_ps = 0;
  double least_ps = 0;
};
// Takes `samples` samples, or fewer when three or more have taken `most_ps`. The same result on all ranks.
absl::StatusOr<Pace> WarmUp(const MeasuredCall& call, const Timing& timing, Gate& gate, int64_t samples,
                            double most_ps);

}  // namespace cohort::measure
