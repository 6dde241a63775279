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

}  // namespace cohort::runtime
