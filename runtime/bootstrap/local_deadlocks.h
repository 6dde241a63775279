// Ranks of one node that wait for each other, where there is no agent to find them: each looks at the others' waits
// when its own call does not move.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "cohort/runtime/segment/segment.h"
#include "cohort/runtime/segment/wait_graph.h"

namespace cohort::runtime {

class LocalDeadlocks {
 public:
  // `segment` outlives it. The node has ranks `first_rank` and following.
  LocalDeadlocks(Segment* segment, int first_rank);

  // The caller waits in a call of this group, whose members are world ranks.
  void NoteGroup(uint64_t group, const std::vector<int>& members);
  // Looks at all waits, at this time of the steady clock. Returns the deadlocks between ranks that have not moved for a
  // while. Each of them has looked at everything again after all of them were seen in these waits: what one did before
  // it began to wait may have moved another, which has not noticed yet.
  std::vector<Deadlock> Look(uint64_t now_ns);
  // The members of a group in which somebody waits, as far as they are ranks of this node.
  std::vector<int> MembersOf(uint64_t group) const;

 private:
  static constexpr uint64_t kUnmovedForNs = 150'000'000;
  static constexpr uint64_t kLooks = 2;  // the first may have begun before
  static constexpr size_t kRoundsKept = 8;

  // A rank's wait as it was first seen.
  struct Seen {
    uint64_t number = 0;
    uint64_t round = 0;
    uint64_t since_ns = 0;
  };
  // The looks of every rank in one call of Look, after all numbers were read.
  struct Round {
    uint64_t number = 0;
    std::vector<uint64_t> looks;  // by local rank
  };

  void SeeAll(uint64_t now_ns);
  // The wait of the rank, if it has not moved for a while.
  std::optional<RankWait> OldWait(int local_rank, uint64_t now_ns) const;
  // Whether the rank has looked at everything since all of these were seen in their waits.
  bool HasLookedSince(int rank, const std::vector<int>& ranks) const;
  GroupMembers Groups() const;

  Segment* const segment_;
  const int first_rank_;
  std::vector<Seen> seen_;    // by local rank
  std::deque<Round> rounds_;  // the latest ones
  uint64_t round_ = 0;
};

}  // namespace cohort::runtime
