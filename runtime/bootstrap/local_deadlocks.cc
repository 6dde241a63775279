#include "cohort/runtime/bootstrap/local_deadlocks.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

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

void LocalDeadlocks::SeeAll(uint64_t now_ns) {
  ++round_;
  for (int local = 0; local < segment_->local_ranks(); ++local) {
    const uint64_t number = ReadWaitNumber(segment_->control(local)).number;
    Seen& seen = seen_[static_cast<size_t>(local)];
    if (seen.number != number) seen = {.number = number, .round = round_, .since_ns = now_ns};
  }
  Round& round = rounds_.emplace_back();
  round.number = round_;
  for (int local = 0; local < segment_->local_ranks(); ++local) {
    round.looks.push_back(ReadWaitNumber(segment_->control(local)).looks);
  }
  if (rounds_.size() > kRoundsKept) rounds_.pop_front();
}

std::optional<RankWait> LocalDeadlocks::OldWait(int local_rank, uint64_t now_ns) const {
  const Seen& seen = seen_[static_cast<size_t>(local_rank)];
  if (seen.number == 0 || now_ns - seen.since_ns < kUnmovedForNs) return std::nullopt;
  const BlackBoxReader box = segment_->black_box_of(local_rank);
  const std::optional<Wait> wait = ReadWait(segment_->control(local_rank), box);
  if (!wait.has_value() || !wait->bound || wait->number != seen.number) return std::nullopt;
  RankWait rank;
  rank.rank = first_rank_ + local_rank;
  rank.waits = rank.bound = true;
  for (const CallRecord& record : wait->awaited) rank.calls.push_back(MakeAwaitedCall(record));
  rank.progress = ReadCallProgress(box);
  // The box was read during this wait only if the wait still goes on.
  if (ReadWaitNumber(segment_->control(local_rank)).number != seen.number) return std::nullopt;
  return rank;
}

bool LocalDeadlocks::HasLookedSince(int rank, const std::vector<int>& ranks) const {
  uint64_t all_wait = 0;  // the round in which the last of them was first seen in its wait
  for (const int other : ranks) all_wait = std::max(all_wait, seen_[static_cast<size_t>(other - first_rank_)].round);
  const auto local = static_cast<size_t>(rank - first_rank_);
  const auto then =
      std::find_if(rounds_.begin(), rounds_.end(), [all_wait](const Round& round) { return round.number >= all_wait; });
  return rounds_.back().looks[local] >= then->looks[local] + kLooks;
}

std::vector<Deadlock> LocalDeadlocks::Look(uint64_t now_ns) {
  SeeAll(now_ns);
  std::vector<RankWait> waits;
  for (int local = 0; local < segment_->local_ranks(); ++local) {
    if (std::optional<RankWait> wait = OldWait(local, now_ns)) waits.push_back(*std::move(wait));
  }
  if (waits.empty()) return {};
  const GroupMembers groups = Groups();
  std::set<int> looked;
  for (const Deadlock& suspected : FindDeadlocks(waits, groups)) {
    for (const int rank : suspected.ranks) {
      if (HasLookedSince(rank, suspected.ranks)) looked.insert(rank);
    }
  }
  std::erase_if(waits, [&looked](const RankWait& wait) { return !looked.contains(wait.rank); });
  return waits.empty() ? std::vector<Deadlock>() : FindDeadlocks(waits, groups);
}

}  // namespace cohort::runtime
