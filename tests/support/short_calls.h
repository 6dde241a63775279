// The short way of repeated small calls (comm/README.md), as tests see it.
#pragma once

#include "cohort/comm/communicator.h"
#include "cohort/comm/group/call_memo.h"
#include "cohort/comm/group/group.h"
#include "cohort/runtime/engine/engine.h"

namespace cohort::testing {

// Turns it on, as it is at first, or off, for calls of this group and of groups that are made from it later.
inline void UseShortCalls(comm::Communicator& communicator, bool use) {
  comm::Group& group = comm::GroupOf(communicator);
  const runtime::EngineLock lock(group.runtime().engine());
  group.memo().RunInline(use);
}

// Counts the group's calls that have taken it so far.
inline comm::InlineCounts ShortCallsOf(comm::Communicator& communicator) {
  comm::Group& group = comm::GroupOf(communicator);
  const runtime::EngineLock lock(group.runtime().engine());
  return group.memo().inline_calls();
}

}  // namespace cohort::testing
