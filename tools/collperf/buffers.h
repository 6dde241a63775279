// The memory of one operation's points: private, windows, or a CUDA device's. Made once, for the largest of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/window.h"
#include "tools/collperf/device_memory.h"
#include "tools/collperf/options.h"
#include "tools/collperf/rank_session.h"
#include "tools/measure/operation.h"

namespace cohort::collperf {

// Send and receive have two buffers in any case.
bool IsInPlace(const Options& options, measure::Operation operation);

// A part of the memory: where calls find it, and where the host writes and reads it. Both are the same but on a device.
struct Place {
  char* data = nullptr;
  char* host = nullptr;

  Place operator+(int64_t bytes) const { return {data + bytes, host + bytes}; }
};

class Buffers {
 public:
  // Collective. kResourceExhausted on all ranks where one has too little memory.
  static absl::StatusOr<Buffers> Make(RankSession& session, const Options& options, measure::Operation operation,
                                      int64_t block_bytes);
  const Place& in() const { return in_; }
  const Place& out() const { return out_; }

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  struct FreeOnDevice {
    CudaDevice* device;
    void operator()(char* memory) const { device->Free(memory); }
  };

  absl::StatusOr<char*> AllocatePrivate(size_t bytes);
  absl::StatusOr<char*> AllocateOn(CudaDevice& device, size_t bytes);

  std::vector<std::unique_ptr<char, Free>> memory_;
  std::vector<std::unique_ptr<char, FreeOnDevice>> on_device_;
  std::vector<comm::Window> windows_;
  Place in_;
  Place out_;
};

}  // namespace cohort::collperf
