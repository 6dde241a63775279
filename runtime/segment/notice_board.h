// How ranks without an agent tell their local peers that a group has failed: a ring of notices per rank in the segment,
// written by its rank, read by all. After posting, the writer raises `events` of those whom it concerns and wakes them.
#pragma once

#include <bitset>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

struct Notice {
  uint64_t group = 0;
  uint64_t epoch = 0;
  int32_t code = 0;  // absl::StatusCode
  int32_t blamed_rank = -1;
  int32_t from_rank = -1;
  uint32_t reserved = 0;
  std::bitset<kMaxLocalRanks> members;  // by local rank
  char text[608] = {};                  // NUL-terminated
};
static_assert(sizeof(Notice) == 96 * 8 && std::is_trivially_copyable_v<Notice>);

// Owner only, one call at a time.
void PostNotice(NoticeMemory* board, const Notice& notice);
// The notices that were posted after the `*seen`-th, oldest first; those that the ring has overwritten are lost.
// Advances *seen. Texts are terminated, whatever the board holds.
std::vector<Notice> ReadNotices(const NoticeMemory* board, uint64_t* seen);

// The members of a group in which the rank waits, by local rank: for LocalDeadlocks (runtime/bootstrap). The board
// holds the latest eight groups. Owner only.
struct WaitedGroup {
  uint64_t group = 0;
  std::bitset<kMaxLocalRanks> members;
};
void NoteWaitedGroup(NoticeMemory* board, const WaitedGroup& group);
std::vector<WaitedGroup> ReadWaitedGroups(const NoticeMemory* board);

}  // namespace cohort::runtime
