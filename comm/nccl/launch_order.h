// The order of the calls of several communicators on one device. NCCL does not order communicators against each other:
// where their kernels do not fit on the device together, one rank's device may run the call that the other one's device
// has put off, for ever, although both ranks issued the calls alike.
//
// Guard: before a call is launched, its stream is made to wait for the last call of another communicator on the device,
// so that a device runs them in the order of issue. All ranks that issue alike then run alike, and can't be stuck. The
// price: calls of two communicators of one device are not run beside each other.
//
// Check: whether the ranks did issue alike can't be known before the launch, since a peer may not have come to its
// calls yet, and asking it would cost more than the call. Behind the guard different orders stand still for certain;
// the calls that this node's ranks have not finished are then compared when the first one stands still for 50 ms.
#pragma once

#include <span>
#include <string>

#include "cohort/comm/provider/provider.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm::nccl {

// Whether the guard is on: unless the setting NCCL_LAUNCH_ORDER_IMPLICIT is 1, which makes NCCL do it from 2.26 on and
// lets the kernels overlap, or 0, which is the user's word that they always fit.
bool GuardsOrder(const std::string& settings, int nccl_version);

// ServicePlan::tuning of a call that NCCL serves, on the k-th device that its group has used: calls of different device
// groups do not match. Where the device lies is not in it: the k-th of one group may be another one's first.
uint64_t DeviceTag(int index);

// The unfinished calls of this rank on one device, and those of a peer, whose devices are told apart; both in the order
// of issue: "rank 0 called all_reduce ... before all_gather ..., rank 1 the other way round"; empty where they agree.
std::string CompareOrder(int rank, std::span<const runtime::CallRecord> calls, int peer,
                         std::span<const runtime::CallRecord> peers_calls);

// The same for this rank, whose `stalled` call stands still, and the members of its group on this node.
std::string DescribeOrderConflict(const GroupContext& group, const runtime::CallRecord& stalled);

}  // namespace cohort::comm::nccl
