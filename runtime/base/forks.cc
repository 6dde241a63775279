#include "cohort/runtime/base/forks.h"

#include <pthread.h>

namespace cohort::runtime {
namespace {

std::atomic<uint64_t> g_forks = 0;

}  // namespace

const std::atomic<uint64_t>& ForkWatch::Forks() {
  [[maybe_unused]] static const int watched =
      pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1, std::memory_order_relaxed); });
  return g_forks;
}

}  // namespace cohort::runtime
