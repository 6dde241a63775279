#include "tests/support/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace {
std::atomic<int64_t> allocations{0};
constinit thread_local int64_t until_failure = 0;  // 0: none fails
}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (until_failure > 0 && --until_failure == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace cohort::testing {

int64_t Allocations() { return allocations.load(std::memory_order_relaxed); }

int64_t FailAllocation(int64_t number) { return std::exchange(until_failure, number); }

}  // namespace cohort::testing
