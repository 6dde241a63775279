#include "cohort/runtime/base/forks.h"

#include <pthread.h>

#include <vector>

#include "cohort/runtime/base/mutex.h"

namespace cohort::runtime {
namespace {

std::atomic<uint64_t> g_forks = 0;

}  // namespace

const std::atomic<uint64_t>& ForkWatch::Forks() {
  [[maybe_unused]] static const int watched =
      pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1, std::memory_order_relaxed); });
  return g_forks;
}

void LeaveToParent(const void* object) {
  static Mutex* const mutex = new Mutex;
  static auto* const objects = new std::vector<const void*>;
  MutexLock lock(*mutex);
  objects->push_back(object);
}

}  // namespace cohort::runtime
