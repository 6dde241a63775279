// The graph of who waits for whom, over all groups and channels, from the waits that ranks show (wait_state.h). It
// tells the ranks that wait for each other, which is an error, and the ranks that others wait for, which is news. Plain
// data, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::runtime {

// The number of bytes that a message to another node may have to be taken off the sender's hands although nobody
// receives it: at least what any transport between nodes lets be outstanding (comm/transport/transport.h).
inline constexpr uint64_t kMostBufferedBytes = (4u << 20) + (64u << 10);

// A call that a rank waits for.
struct AwaitedCall {
  uint64_t group = 0;
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  uint16_t kind = 0;  // comm::CollectiveKind
  int32_t peer = -1;  // the world rank of the other side of a send or a receive, or of the root
  uint64_t bytes = 0;
  bool device = false;  // on device memory, whose progress is not seen from here
  std::string call;     // "recv(float32, 4, from 1)"
  std::string site;
};
AwaitedCall MakeAwaitedCall(const CallRecord& record);

// A rank as others see it.
struct RankWait {
  int rank = -1;  // in the world
  int node = 0;
  bool waits = false;
  bool bound = false;  // see ShowWait
  std::vector<AwaitedCall> calls;
  CallProgress progress;
};

// The world ranks of each group.
using GroupMembers = std::map<uint64_t, std::vector<int>>;

// Ranks that wait for each other, so that none of their calls can ever end.
struct Deadlock {
  struct BrokenGroup {
    uint64_t group = 0;
    uint64_t epoch = 0;
  };
  std::vector<int> ranks;           // ascending
  std::vector<BrokenGroup> groups;  // of the calls that they wait for
  // One line for people: each rank, its call and call site, and whom it waits for; and what to do.
  std::string text;
};

// All deadlocks among `ranks`, whose waits must have been seen at one moment. A rank waits for another when its call
// can't end without a call that the other has not made: for the sender of a message, for all members of an all-reduce,
// all-gather, reduce-scatter, all-to-all or barrier, for the root of a broadcast or scatter, as root of a reduce or
// gather for all. A sender waits for its receiver where the message is too long to be buffered or, on one node, where
// the receiver has nothing left to receive from it; the caller makes sure that both have looked at everything since.
// The needs of other calls are not known here, and where a rank's box may have forgotten a call it is taken to have
// made it: such ranks are in no deadlock. Linear in ranks, calls and the absent members of each call.
std::vector<Deadlock> FindDeadlocks(std::span<const RankWait> ranks, const GroupMembers& members);

// A rank that does not wait itself, and how many ranks wait for it, directly or through others.
struct Straggler {
  int rank = -1;
  size_t waiting = 0;
};
// The ranks that others wait for, most waited for first, then by rank. Ranks that wait only for each other have none.
// Less strict than FindDeadlocks: a member that has not made a call counts although the call may end without it.
std::vector<Straggler> FindStragglers(std::span<const RankWait> ranks, const GroupMembers& members);
// The ranks that wait for this one, directly or through others, by the same rules. In the order of `ranks`.
std::vector<int> FindWaitersOf(int rank, std::span<const RankWait> ranks, const GroupMembers& members);

}  // namespace cohort::runtime
