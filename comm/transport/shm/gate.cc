#include "cohort/comm/transport/shm/gate.h"

#include <sys/mman.h>

#include <random>
#include <utility>

#include "cohort/runtime/base/check.h"
#include "cohort/runtime/base/sanitizer.h"

namespace cohort::comm::shm {
namespace {

constexpr size_t kGateBytes = 4096;
// Address space only: a gate takes memory when it is first written to. One mapping, however many groups there are.
constexpr size_t kRegionGates = 256;
constexpr size_t kRegionBytes = kRegionGates * kGateBytes;

// Older than the C library's headers may be; older kernels take it for a hint, which the caller's look at the result
// covers.
#ifndef MAP_FIXED_NOREPLACE
constexpr int MAP_FIXED_NOREPLACE = 0x100000;
#endif

// Within 46 bits, then within 38, where a process has no more than 39. The thread sanitizer has its own data in most of
// the upper ones, and makes any hint there a request for address 0.
constexpr int kWide = COHORT_THREAD_SANITIZER ? 38 : 46;
// The address sanitizer's shadow takes a quarter of the former and all of the latter.
constexpr int kWideTries = 12;
constexpr int kNarrowTries = 4;

void* MapAtRandom() {
  std::random_device device;
  for (int i = 0; i < kWideTries + kNarrowTries; ++i) {
    const int bits = i < kWideTries ? kWide : 38;
    const uint64_t word = static_cast<uint64_t>(device()) << 32 | device();
    const uint64_t address = word % (uint64_t{1} << bits) / kRegionBytes * kRegionBytes;
    if (address < (uint64_t{1} << 32)) continue;
    void* hint = reinterpret_cast<void*>(address);  // NOLINT: chosen, not derived
    void* region = mmap(hint, kRegionBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (region == hint) return region;
    if (region != MAP_FAILED) munmap(region, kRegionBytes);
  }
  return nullptr;
}

}  // namespace

GateField::~GateField() {
  if (closed_any_) return;  // late writers must find nothing else there
  for (void* region : regions_) munmap(region, kRegionBytes);
}

bool GateField::Grow() {
  void* region = MapAtRandom();
  if (region == nullptr) return false;
  (void)madvise(region, kRegionBytes, MADV_DONTFORK);
  regions_.push_back(region);
  for (size_t i = kRegionGates; i-- > 0;) {
    free_.push_back(reinterpret_cast<uintptr_t>(region) + i * kGateBytes);
  }
  return true;
}

uint64_t GateField::Open() {
  if (free_.empty() && !Grow()) return 0;
  const uint64_t gate = free_.back();
  free_.pop_back();
  return gate;
}

void GateField::Return(uint64_t gate) { free_.push_back(gate); }

void GateField::Close(uint64_t gate) {
  closed_any_ = true;
  void* page = reinterpret_cast<void*>(gate);  // NOLINT: an address
  // A new mapping in its place: gives the memory back and lets nobody in.
  void* closed = mmap(page, kGateBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (closed == page) return;
  // The mappings of a process are limited (vm.max_map_count), and a page of its own is one more. All gates beside it
  // need none: those groups' writers are refused, which is an error, where a write after the end would be a wrong
  // result.
  for (void* region : regions_) {
    const auto begin = reinterpret_cast<uintptr_t>(region);
    if (gate < begin || gate >= begin + kRegionBytes) continue;
    // None of its pages has another mapping than it, or none at all: so this makes fewer of them.
    COHORT_CHECK(mprotect(region, kRegionBytes, PROT_NONE) == 0);
    std::erase_if(free_, [begin](uint64_t other) { return other >= begin && other < begin + kRegionBytes; });
  }
}

Gate::~Gate() {
  if (address_ != 0) field_.Return(address_);
}

void Gate::Close() {
  if (const uint64_t gate = std::exchange(address_, 0); gate != 0) field_.Close(gate);
}

}  // namespace cohort::comm::shm
