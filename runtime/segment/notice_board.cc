#include "cohort/runtime/segment/notice_board.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cohort/runtime/segment/layout.h"

namespace cohort::runtime {

static_assert(sizeof(Notice) == kNoticeWords * 8);

void PostNotice(NoticeMemory* board, const Notice& notice) {
  const uint64_t ticket = board->tickets.load(std::memory_order_relaxed) + 1;
  NoticeSlot& slot = board->slots[ticket % kNotices];
  uint64_t words[kNoticeWords];
  std::memcpy(words, &notice, sizeof words);
  slot.version.store(2 * ticket - 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (int i = 0; i < kNoticeWords; ++i) slot.words[i].store(words[i], std::memory_order_relaxed);
  slot.version.store(2 * ticket, std::memory_order_release);
  board->tickets.store(ticket, std::memory_order_release);
}

std::vector<Notice> ReadNotices(const NoticeMemory* board, uint64_t* seen) {
  std::vector<Notice> notices;
  const uint64_t newest = board->tickets.load(std::memory_order_acquire);
  if (newest <= *seen) return notices;
  const uint64_t oldest = std::max(*seen + 1, newest >= kNotices ? newest - kNotices + 1 : 1);
  // Ends whatever number the board holds: behind the newest one the difference is no small number any more.
  for (uint64_t ticket = oldest; newest - ticket < kNotices; ++ticket) {
    const NoticeSlot& slot = board->slots[ticket % kNotices];
    const uint64_t version = slot.version.load(std::memory_order_acquire);
    uint64_t words[kNoticeWords];
    for (int i = 0; i < kNoticeWords; ++i) words[i] = slot.words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version != 2 * ticket || slot.version.load(std::memory_order_relaxed) != version) continue;
    Notice notice;
    std::memcpy(static_cast<void*>(&notice), words, sizeof notice);
    notice.text[sizeof notice.text - 1] = '\0';
    notices.push_back(notice);
  }
  *seen = newest;
  return notices;
}

namespace {

constexpr int kWordBits = 64;

}  // namespace

void NoteWaitedGroup(NoticeMemory* board, const WaitedGroup& group) {
  for (const WaitedGroupSlot& slot : board->waited) {
    if (slot.group.load(std::memory_order_relaxed) == group.group) return;  // a group's members never change
  }
  const uint64_t place = board->waited_groups.load(std::memory_order_relaxed);
  board->waited_groups.store(place + 1, std::memory_order_relaxed);
  WaitedGroupSlot& slot = board->waited[place % kWaitedGroups];
  const uint64_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.group.store(group.group, std::memory_order_relaxed);
  for (int word = 0; word < kMaxLocalRanks / kWordBits; ++word) {
    uint64_t bits = 0;
    for (int bit = 0; bit < kWordBits; ++bit) {
      if (group.members.test(static_cast<size_t>(word * kWordBits + bit))) bits |= uint64_t{1} << bit;
    }
    slot.members[word].store(bits, std::memory_order_relaxed);
  }
  slot.version.store(version + 2, std::memory_order_release);
}

std::vector<WaitedGroup> ReadWaitedGroups(const NoticeMemory* board) {
  std::vector<WaitedGroup> groups;
  for (const WaitedGroupSlot& slot : board->waited) {
    const uint64_t version = slot.version.load(std::memory_order_acquire);
    WaitedGroup group;
    group.group = slot.group.load(std::memory_order_relaxed);
    for (int word = 0; word < kMaxLocalRanks / kWordBits; ++word) {
      const uint64_t bits = slot.members[word].load(std::memory_order_relaxed);
      for (int bit = 0; bit < kWordBits; ++bit) {
        if ((bits >> bit & 1) != 0) group.members.set(static_cast<size_t>(word * kWordBits + bit));
      }
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version % 2 != 0 || slot.version.load(std::memory_order_relaxed) != version || group.group == 0) continue;
    groups.push_back(group);
  }
  return groups;
}

}  // namespace cohort::runtime
