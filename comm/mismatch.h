// The words for calls that do not match, and for operations that ended otherwise than they should.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/plan/runner.h"
#include "comm/provider.h"
#include "runtime/segment/call_record.h"

namespace cohort::comm {

// kFailedPrecondition that names the ranks, both calls and both call sites: `mine` is this rank's call, `failure` what
// arrived instead. Where the peer's call did not come along it is read from the black boxes of the node's ranks.
absl::Status MismatchError(const GroupContext& group, const runtime::CallRecord& mine, const RunnerFailure& failure);

// kDeadlineExceeded: "all_reduce(sum, float32, 8) #42 at train.cc:88 not complete after 2 s: waiting for rank 3".
absl::Status TimeoutError(const GroupContext& group, const runtime::CallRecord& mine, std::chrono::nanoseconds timeout,
                          const std::vector<int>& waiting_for);

// "all_reduce #42 at train.cc:88".
std::string DescribePending(const runtime::CallRecord& record);

}  // namespace cohort::comm
