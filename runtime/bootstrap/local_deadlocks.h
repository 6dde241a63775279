// Ranks of one node that wait for each other, where there is no agent to find them: each looks at the others' waits
// when its own call does not move.
#pragma once

#include <cstdint>
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
  // Looks at all waits. Those that are the same as some calls ago count, if their ranks have looked at everything
  // since.
  std::vector<Deadlock> Look();
  // The members of a group in which somebody waits, as far as they are ranks of this node.
  std::vector<int> MembersOf(uint64_t group) const;

 private:
  static constexpr uint64_t kUnmovedForNs = 150'000'000;
  static constexpr uint64_t kLooks = 2;

  struct Seen {
    uint64_t number = 0;
    uint64_t looks = 0;
    uint64_t since_ns = 0;
  };

  bool IsOld(int local_rank, uint64_t now_ns);
  GroupMembers Groups() const;

  Segment* const segment_;
  const int first_rank_;
  std::vector<Seen> seen_;  // by local rank
};

}  // namespace cohort::runtime
