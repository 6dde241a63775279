#include "cohort/runtime/base/asymmetric_fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cohort/runtime/base/sanitizer.h"

namespace cohort::runtime {
namespace {

// The thread sanitizer does not know of it.
constexpr bool kMayBeAsymmetric = COHORT_THREAD_SANITIZER == 0;

bool Membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

AsymmetricFence::AsymmetricFence()
    : asymmetric_(kMayBeAsymmetric && Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)) {}

void AsymmetricFence::Heavy() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (asymmetric_) (void)Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

}  // namespace cohort::runtime
