#include "cohort/comm/fail_with.h"

#include <algorithm>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/group/group.h"

namespace cohort::comm {

void FailWith(Communicator& group, const Communicator& whole) {
  Group& self = GroupOf(group);
  runtime::EngineLock lock(self.runtime().engine());
  std::vector<int>& ranks = self.context_.fails_with;
  ranks.insert(ranks.end(), whole.members().begin(), whole.members().end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  for (const int rank : ranks) {
    if (const absl::Status lost = self.runtime().rank_status(rank); !lost.ok()) self.FailHere(lost);
  }
}

}  // namespace cohort::comm
