// A fence for two sides of which one passes very often and the other is about to sleep: the often side pays nothing.
#pragma once

#include <atomic>

namespace cohort::runtime {

// Orders two threads of one process like a sequentially consistent fence on both sides. One does "store A, Light(),
// load B", the other "store B, Heavy(), load A". At least one of them then sees the other's store.
//
// Heavy makes all running threads of the process execute a fence: membarrier(2), 1 to 10 us. Both are ordinary fences
// under ThreadSanitizer, and if the kernel has no membarrier (before 4.14, or forbidden).
class AsymmetricFence {
 public:
  AsymmetricFence();

  void Light() const {
    if (asymmetric_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  void Heavy() const;

 private:
  bool asymmetric_ = false;
};

}  // namespace cohort::runtime
