// One rank of a communication system that takes part in a comparison.
#pragma once

#include <cstdint>
#include <string>

#include "tools/measure/operation.h"

namespace cohort::measure {

// One blocking call on float32, sums where the operation reduces. Buffers that the rank does not have are null.
struct SystemCall {
  Operation operation{};
  const float* in = nullptr;
  float* out = nullptr;
  int64_t count = 0;  // elements of a block
  int root = 0;
  int variant = 0;  // of the memory
  // kSendRecv: the number of messages of every rank to the next one that are under way at a time.
  int messages = 1;
  // Above 0, kAllReduce: an asynchronous call, then Compute() for so long, then the wait for the call.
  double compute_us = 0;

  bool operator==(const SystemCall&) const = default;
};

// Arithmetic that takes an uninterrupted CPU so long. It makes no call of any system.
void Compute(double us);

class SystemRank {
 public:
  virtual ~SystemRank() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Empty: done. Else what went wrong; the system is not used afterwards.
  virtual std::string Run(const SystemCall& call) = 0;
  // Memory of the given variant, the same on all ranks but for its size; null where there is none. Collective.
  virtual void* Allocate(int variant, int buffer, int64_t bytes);
  virtual void Release(int variant);
  // Called while the rank waits for the others' arrival at the gate.
  virtual void Progress() {}

 private:
  static constexpr int kBuffers = 2;
  void* memory_[2][kBuffers] = {};
};

// Carries out the conductor's commands until it says exit. `path` is the session's memory; `slot` the system's.
// Returns the process' exit code.
int Serve(SystemRank& system, const std::string& path, int ranks, int slot);

}  // namespace cohort::measure
