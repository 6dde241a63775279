#include "cohort/runtime/ranges.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

// The ring is mapped at one address for as long as the process lives: a runtime puts its ring there, and leaves private
// memory of zeros when it goes. So a thread that ends a range meanwhile writes to either, and to nothing else.
std::atomic<RangeMemory*> internal::g_ranges{nullptr};

namespace {

using internal::g_ranges;

constexpr size_t kBytes = (sizeof(RangeMemory) + kPage - 1) / kPage * kPage;

Mutex g_mutex;
const void* g_owner COHORT_GUARDED_BY(g_mutex) = nullptr;

// A child shares its parent's ring until this. Without memory nothing is recorded any more, and the place is given up.
void PutPrivateMemory() {
  RangeMemory* const ranges = g_ranges.load(std::memory_order_relaxed);
  if (ranges == nullptr) return;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  if (::mmap(ranges, kBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED) g_ranges.store(nullptr);
}

uint16_t LineOfThread() {
  static std::atomic<uint32_t> threads{0};
  thread_local const uint32_t number = threads.fetch_add(1, std::memory_order_relaxed);
  return static_cast<uint16_t>(number % kRangeLines);
}

}  // namespace

absl::Status AttachRanges(Segment& segment, const void* owner) {
  [[maybe_unused]] static const int watched = ::pthread_atfork(nullptr, nullptr, PutPrivateMemory);
  MutexLock lock(g_mutex);
  const auto offset = static_cast<off_t>(RankPartOffset(segment.local_rank()) + offsetof(RankPart, ranges));
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd(), offset);
  if (mapped == MAP_FAILED) return ErrnoStatus(errno, "cannot map the ring of ranges of the node segment");
  RangeMemory* at = g_ranges.load(std::memory_order_relaxed);
  if (at == nullptr) {
    at = static_cast<RangeMemory*>(mapped);
  } else if (::mremap(mapped, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) {
    absl::Status status = ErrnoStatus(errno, "cannot move the ring of ranges of the node segment to its place");
    (void)::munmap(mapped, kBytes);
    g_owner = nullptr;
    PutPrivateMemory();  // the kernel may have removed what was there
    return status;
  }
  g_owner = owner;
  g_ranges.store(at, std::memory_order_release);
  return absl::OkStatus();
}

void DetachRanges(const void* owner) {
  MutexLock lock(g_mutex);
  if (g_owner != owner) return;
  g_owner = nullptr;
  PutPrivateMemory();
}

void MarkStep(uint64_t number) {
  RangeMemory* const ranges = g_ranges.load(std::memory_order_acquire);
  if (ranges == nullptr) return;
  RangeRecord record;
  record.start_ns = record.end_ns = SteadyNow();
  record.number = number;
  record.lane = RangeLane::kSteps;
  AddRange(ranges, record);
}

void Range::Begin(std::string_view name, RangeLane lane, uint64_t number) {
  BeginOn(LineOfThread(), name, lane, number);
}

void Range::BeginOn(uint16_t line, std::string_view name, RangeLane lane, uint64_t number) {
  record_.emplace();
  record_->set_name(name);
  record_->lane = lane;
  record_->number = number;
  record_->line = line % kRangeLines;
  record_->start_ns = SteadyNow();
}

void Range::End() {
  record_->end_ns = SteadyNow();
  if (RangeMemory* const ranges = g_ranges.load(std::memory_order_acquire); ranges != nullptr) {
    AddRange(ranges, *record_);
  }
}

}  // namespace cohort::runtime
