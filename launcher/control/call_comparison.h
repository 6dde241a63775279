// Compares what the members of a group say of one operation, and decides whether that explains why it does not move.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// One member of the group and what is known of it.
struct InspectedMember {
  uint32_t rank = 0;
  std::string place;      // Roster::Place
  bool answered = false;  // false: its agent said nothing of it in time; `call` is then empty
  v1::CallState call;
  bool ended = false;  // the rank has exited, or left the epoch; `end` says how ("exited with code 0")
  std::string end;
};

// A decision: the group is to fail with this.
struct CallVerdict {
  int code = 0;  // absl::StatusCode
  std::string text;
  int blamed_rank = -1;  // world rank, -1 when no single one stands out
};

struct CallComparison {
  std::optional<CallVerdict> verdict;
  bool undecided = false;  // someone who called waits for someone who has not: worth asking again
};

// The state of the operation whose calls are compared.
enum class OperationState {
  kStalled,  // it has not moved for a while
  kExpired,  // its deadline has passed: there is a verdict unless all who called are done by now
  kWatched,  // as kExpired, of a call that nobody gives up
  kFailed,   // a member has given it up at its deadline: there is a verdict where somebody never called, or is stopped
};

// Pure. `sequence` is the operation's number in `group` and `epoch`.
//   kFailedPrecondition  two members called differently; names all ranks, both calls and both call sites
//   kDataLoss            the calls agree, and their results, which must be equal, do not; names the ranks that stand
//   out kUnavailable         a member has exited without calling, or before its call was complete, and others wait
//   kDeadlineExceeded    not of kStalled: names whom a debugger has stopped, or who never called and what they were
//                        doing instead
CallComparison CompareCalls(uint64_t group, uint64_t epoch, uint64_t sequence,
                            const std::vector<InspectedMember>& members, OperationState state);

}  // namespace cohort::launcher
