// Calls of a group of one: copies.
#pragma once

#include "absl/status/status.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"

namespace cohort::comm {

// True for calls that need nobody else and no provider.
inline bool ServedAlone(const GroupContext& group, const CollectiveRequest& request) {
  return group.size == 1 && request.memory == MemoryKind::kHost && !IsPointToPoint(request.kind);
}
// Checks the name of the algorithm of such a call: a wrong one is found where a program is tried with one rank, too.
absl::Status CheckNameAlone(const GroupContext& group, CollectiveKind kind, const CallOptions& options);

// Does what the request asks of a group of one rank, on host memory, at once.
void RunLocalCall(const CollectiveRequest& request);

}  // namespace cohort::comm
