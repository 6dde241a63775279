// --check nan: finds NaN and infinity in the input of a call, before they spread.
#pragma once

#include "absl/status/status.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// kDataLoss where the input that this rank gives to the call, which begins at `in`, is not finite: "rank 3's input of
// all_reduce(sum, float32, 1024) at train.cc:88 holds NaN at element 17 (1 NaN, 0 inf)". Integers and CUDA memory are
// not looked at. `record` describes the call.
absl::Status CheckInput(const GroupContext& group, const CollectiveRequest& request, const void* in,
                        const runtime::CallRecord& record);

// Says on stderr, once in a process, that a call on CUDA memory is not checked.
void NoteUnchecked(const GroupContext& group, const CollectiveRequest& request);

}  // namespace cohort::comm
