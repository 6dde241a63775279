// Shrink: the group without its dead members, agreed upon by the survivors.
//
// The survivors may have learned deaths in different orders, and more may die meanwhile, so they agree through the
// job's key-value store. Ranks propose in the order of the group: everybody reads the first member's proposal, and goes
// on to the next member only when that one is dead and has left none. The dead leave no more, so all survivors end at
// the same proposal, in whatever order they learned the deaths:
//
//   members 0 1 2 3; 1 dies      rank 0 proposes "without 1"; 2 and 3 read it
//   members 0 1 2 3; 0, 2 die    1 and 3 find no proposal of 0 and know it dead; 1 proposes, 3 reads
//
// Then the members of the new group meet in a barrier. When one of them has died in the meantime the group is shrunk
// again in the same way, so a rank whose barrier still succeeded and shrinks later arrives at the same group.
//
// A member whose time is over before all have met says so in the store: who comes later goes on to the round in which
// it tries again.
//
// Rests on what the runtime promises: a rank that is told to be dead is dead (runtime/README.md).
#pragma once

#include <memory>
#include <source_location>

#include "absl/status/statusor.h"
#include "cohort/comm/group/group.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::comm {

// Blocks. `site` is the caller's, for black boxes and messages. kDeadlineExceeded names the survivor that has not
// called; kUnavailable where a member has ended in order, or can't be reached but nobody says that it is dead (ranks of
// other hosts without dlaunch's agents).
absl::StatusOr<std::unique_ptr<Group>> ShrinkGroup(Group& group, runtime::Deadline deadline,
                                                   const std::source_location& site);

}  // namespace cohort::comm
