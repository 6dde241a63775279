#include "cohort/runtime/segment/directory.h"

#include <atomic>
#include <string>

#include "absl/status/status.h"

namespace cohort::runtime {
namespace {

constexpr uint32_t kMask = kDirectoryEntries - 1;

uint32_t FirstSlot(uint64_t key) { return static_cast<uint32_t>((key * 0x9e3779b97f4a7c15u) >> 40) & kMask; }

void Write(DirectoryEntry& entry, uint64_t key, SegmentBlock block) {
  const uint64_t version = entry.version.load(std::memory_order_relaxed);
  entry.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.key.store(key, std::memory_order_relaxed);
  entry.offset.store(block.offset, std::memory_order_relaxed);
  entry.bytes.store(block.bytes, std::memory_order_relaxed);
  entry.version.store(version + 2, std::memory_order_release);
}

// A copy of the entry that belongs together. An entry under change is in nobody's use yet or any more: it is read as
// deleted.
struct Copy {
  uint64_t key;
  SegmentBlock block;
};
Copy Read(const DirectoryEntry& entry) {
  const uint64_t version = entry.version.load(std::memory_order_acquire);
  const Copy copy{entry.key.load(std::memory_order_relaxed),
                  {entry.offset.load(std::memory_order_relaxed), entry.bytes.load(std::memory_order_relaxed)}};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (version % 2 != 0 || entry.version.load(std::memory_order_relaxed) != version) return Copy{kDeletedKey, {}};
  return copy;
}

DirectoryEntry* Slot(DirectoryEntry* table, uint64_t key) {
  for (uint32_t i = 0, slot = FirstSlot(key); i < kDirectoryEntries; ++i, slot = (slot + 1) & kMask) {
    const uint64_t found = table[slot].key.load(std::memory_order_relaxed);
    if (found == key) return &table[slot];
    if (found == 0) return nullptr;
  }
  return nullptr;
}

}  // namespace

absl::Status DirectoryInsert(DirectoryEntry* table, uint64_t key, SegmentBlock block) {
  if (key == 0 || key == kDeletedKey) return absl::InvalidArgumentError("segment directory: reserved key");
  if (Slot(table, key) != nullptr) return absl::AlreadyExistsError("segment directory: the key is already there");
  for (uint32_t i = 0, slot = FirstSlot(key); i < kDirectoryEntries; ++i, slot = (slot + 1) & kMask) {
    const uint64_t found = table[slot].key.load(std::memory_order_relaxed);
    if (found != 0 && found != kDeletedKey) continue;
    Write(table[slot], key, block);
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      "segment directory: all " + std::to_string(kDirectoryEntries) +
      " entries are in use, one for each group in which this rank has moved data on its host; destroy communicators "
      "that are no longer needed, and make this group again");
}

void DirectoryErase(DirectoryEntry* table, uint64_t key) {
  if (key == 0 || key == kDeletedKey) return;
  DirectoryEntry* entry = Slot(table, key);
  if (entry == nullptr) return;
  Write(*entry, kDeletedKey, {});
  // Deleted entries in front of an empty one end no search: make them empty too, or misses would grow ever longer.
  auto slot = static_cast<uint32_t>(entry - table);
  if (table[(slot + 1) & kMask].key.load(std::memory_order_relaxed) != 0) return;
  for (uint32_t i = 0; i < kDirectoryEntries; ++i, slot = (slot - 1) & kMask) {
    if (table[slot].key.load(std::memory_order_relaxed) != kDeletedKey) return;
    Write(table[slot], 0, {});
  }
}

std::optional<SegmentBlock> DirectoryFind(const DirectoryEntry* table, uint64_t key) {
  if (key == 0 || key == kDeletedKey) return std::nullopt;
  for (uint32_t i = 0, slot = FirstSlot(key); i < kDirectoryEntries; ++i, slot = (slot + 1) & kMask) {
    const Copy copy = Read(table[slot]);
    if (copy.key == key) return copy.block;
    if (copy.key == 0) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace cohort::runtime
