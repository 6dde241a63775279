#include "cohort/runtime/ranges/range_ring.h"

#include <algorithm>
#include <cstring>

namespace cohort::runtime {
namespace {

RangeSlot& SlotOf(RangeMemory* memory, uint64_t ticket) { return memory->slots[ticket % kRangeRecords]; }

}  // namespace

void RangeRecord::set_name(std::string_view text) {
  const size_t length = std::min(text.size(), sizeof name - 1);
  std::memcpy(name, text.data(), length);
  std::memset(name + length, 0, sizeof name - length);
}

void AddRange(RangeMemory* memory, const RangeRecord& record) {
  const uint64_t ticket = memory->tickets.fetch_add(1, std::memory_order_relaxed) + 1;
  RangeSlot& slot = SlotOf(memory, ticket);
  uint64_t version = slot.version.load(std::memory_order_acquire);
  // A ticket that nobody has been given yet, or that of this record, is one of another ring, which lay at this address
  // when its thread took it.
  const bool overtaken = version > 2 * ticket && version <= 2 * memory->tickets.load(std::memory_order_relaxed);
  if (version % 2 != 0 || overtaken ||
      !slot.version.compare_exchange_strong(version, 2 * ticket - 1, std::memory_order_relaxed)) {
    return;
  }
  std::atomic_thread_fence(std::memory_order_release);
  const auto* bytes = reinterpret_cast<const std::byte*>(&record);
  for (size_t i = 0; i < kRangeWords; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + i * 8, sizeof word);
    slot.words[i].store(word, std::memory_order_relaxed);
  }
  slot.version.store(2 * ticket, std::memory_order_release);
}

std::optional<RangeRecord> RangeAt(const RangeMemory* memory, uint64_t ticket) {
  const RangeSlot& slot = memory->slots[ticket % kRangeRecords];
  if (slot.version.load(std::memory_order_acquire) != 2 * ticket) return std::nullopt;
  uint64_t words[kRangeWords];
  for (size_t i = 0; i < kRangeWords; ++i) words[i] = slot.words[i].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != 2 * ticket) return std::nullopt;
  RangeRecord record;
  std::memcpy(static_cast<void*>(&record), words, sizeof record);
  if (static_cast<uint16_t>(record.lane) >= kRangeLanes) record.lane = RangeLane::kProgram;
  record.line %= kRangeLines;
  record.end_ns = std::max(record.end_ns, record.start_ns);
  record.name[sizeof record.name - 1] = '\0';
  return record;
}

}  // namespace cohort::runtime
