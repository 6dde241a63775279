// Finds out whether two ranks issued the calls of two communicators of one device in different orders. NCCL does not
// order communicators against each other: each rank's device then may run the call that the other one's device has
// put off, for ever.
#pragma once

#include <span>
#include <string>

#include "comm/provider.h"
#include "runtime/segment/call_record.h"

namespace cohort::comm::nccl {

// ServicePlan::tuning of a call on the k-th device that NCCL serves: so its record tells in which queue it is.
uint64_t DeviceTag(int index);

// The unfinished calls of two ranks on one device, in the order of issue: "rank 0 called all_reduce ... before
// all_gather ..., rank 1 the other way round"; empty where they agree.
std::string CompareOrder(int rank, std::span<const runtime::CallRecord> calls, int peer,
                         std::span<const runtime::CallRecord> peers_calls);

// The same for this rank, whose `stalled` call stands still, and the members of its group on this node.
std::string DescribeOrderConflict(const GroupContext& group, const runtime::CallRecord& stalled);

}  // namespace cohort::comm::nccl
