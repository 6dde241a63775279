#include "cohort/runtime/bootstrap/local_deadlocks.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/notice_board.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::runtime {

LocalDeadlocks::LocalDeadlocks(Segment* segment, int first_rank)
    : segment_(segment), first_rank_(first_rank), seen_(static_cast<size_t>(segment->local_ranks())) {}

void LocalDeadlocks::NoteGroup(uint64_t group, const std::vector<int>& members) {
  WaitedGroup note;
  note.group = group;
  for (const int member : members) {
    const int local = member - first_rank_;
    if (local >= 0 && local < segment_->local_ranks()) note.members.set(static_cast<size_t>(local));
  }
  NoteWaitedGroup(segment_->notices(segment_->local_rank()), note);
}

GroupMembers LocalDeadlocks::Groups() const {
  GroupMembers groups;
  for (int local = 0; local < segment_->local_ranks(); ++local) {
    for (const WaitedGroup& note : ReadWaitedGroups(segment_->notices(local))) {
      std::vector<int>& members = groups[note.group];
      if (!members.empty()) continue;
      for (int member = 0; member < segment_->local_ranks(); ++member) {
        if (note.members.test(static_cast<size_t>(member))) members.push_back(first_rank_ + member);
      }
    }
  }
  return groups;
}

std::vector<int> LocalDeadlocks::MembersOf(uint64_t group) const {
  GroupMembers groups = Groups();
  const auto found = groups.find(group);
  return found == groups.end() ? std::vector<int>() : std::move(found->second);
}

// Whether the rank has been in the same wait for a while, and has looked at everything meanwhile.
bool LocalDeadlocks::IsOld(int local_rank, uint64_t now_ns) {
  const WaitNumber now = ReadWaitNumber(segment_->control(local_rank));
  Seen& seen = seen_[static_cast<size_t>(local_rank)];
  if (now.number == 0 || now.number != seen.number) {
    seen = {now.number, now.looks, now_ns};
    return false;
  }
  return now_ns - seen.since_ns >= kUnmovedForNs && now.looks >= seen.looks + kLooks;
}

std::vector<Deadlock> LocalDeadlocks::Look() {
  const uint64_t now_ns = SteadyNow();
  std::vector<int> old;
  for (int local = 0; local < segment_->local_ranks(); ++local) {
    if (IsOld(local, now_ns)) old.push_back(local);
  }
  std::vector<RankWait> waits;
  for (const int local : old) {
    const BlackBoxReader box = segment_->black_box_of(local);
    std::optional<Wait> wait = ReadWait(segment_->control(local), box);
    if (!wait.has_value() || !wait->bound || wait->number != seen_[static_cast<size_t>(local)].number) continue;
    RankWait rank;
    rank.rank = first_rank_ + local;
    rank.waits = rank.bound = true;
    for (const CallRecord& record : wait->awaited) rank.calls.push_back(MakeAwaitedCall(record));
    rank.progress = ReadCallProgress(box);
    // The box was read during this wait only if the wait still goes on.
    if (ReadWaitNumber(segment_->control(local)).number == wait->number) waits.push_back(std::move(rank));
  }
  return waits.empty() ? std::vector<Deadlock>() : FindDeadlocks(waits, Groups());
}

}  // namespace cohort::runtime
