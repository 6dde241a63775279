// Calls that NCCL makes without waiting for peers, since it has made one like them before. It makes connections when a
// call first needs them: those of an algorithm, which it chooses by operation and size; those to a peer in one
// direction. Then it waits for the peers inside, and so must not be called on the caller's own thread
// (nccl_communicator.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>

#include "cohort/comm/request.h"

namespace cohort::comm::nccl {

// A hash of all that decides which connections a launch of this call needs, after those of `before`, which are in the
// same launch; equal only in this process. `registers`: memory of the communicator is registered, so that it matters
// where the buffers are.
uint64_t LaunchShape(uint64_t before, const CollectiveRequest& request, bool registers);

// The shapes of the launches that a group has made on a device.
class KnownLaunches {
 public:
  bool Contain(uint64_t shape) const { return shapes_.contains(shape); }
  // Forgets the others when there are too many.
  void Add(uint64_t shape) {
    if (shapes_.size() == kMost) shapes_.clear();
    shapes_.insert(shape);
  }

 private:
  static constexpr size_t kMost = 4096;
  std::unordered_set<uint64_t> shapes_;
};

}  // namespace cohort::comm::nccl
