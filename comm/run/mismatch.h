// The words for calls that do not match, and for operations that ended otherwise than they should.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/run/runner.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

struct Mismatch {
  absl::Status error;  // kFailedPrecondition; kDataLoss where results of earlier calls differ (--check results)
  // The error names the calls that differ. False: the calls that met agree, so an earlier one differed, or the peer's
  // call can't be seen from here.
  bool found = false;
  int blamed = -1;  // the group rank that called otherwise than all others, if there is one
};
// Names the ranks, both calls and both call sites: `mine` is this rank's call, `failure` what arrived instead. Where
// the peer's call did not come along, and for earlier calls, the black boxes of the node's ranks are read.
Mismatch ExplainMismatch(const GroupContext& group, const runtime::CallRecord& mine, const RunnerFailure& failure);

// The first operation that may have differed when a mismatch shows in operation `last`: a rank whose wrong call needed
// nothing from the others has gone on, and meets them in a later one.
uint64_t FirstSuspect(uint64_t last);

// kDeadlineExceeded: "all_reduce(sum, float32, 8) #42 at train.cc:88 not complete after 2 s: waiting for rank 3".
absl::Status TimeoutError(const GroupContext& group, const runtime::CallRecord& mine, std::chrono::nanoseconds timeout,
                          const std::vector<int>& waiting_for);

// "all_reduce #42 at train.cc:88".
std::string DescribePending(const runtime::CallRecord& record);

}  // namespace cohort::comm
