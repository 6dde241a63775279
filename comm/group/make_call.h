// Makes prepared calls: checks what the caller passed, and finds out who serves the call and how. Nothing is sent.
#pragma once

#include "absl/status/status.h"
#include "cohort/comm/group/call_memo.h"
#include "cohort/comm/group/call_recorder.h"
#include "cohort/comm/group/group_providers.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"

namespace cohort::comm {

// Fills `made` from the arguments, all but what ChooseService fills. `shape` is null for a call without one.
// kInvalidArgument: see MakeRequest, MakeUnequalRequest and ApplyOptions.
absl::Status CheckCall(const GroupContext& group, const CallArguments& arguments, const CallOptions& options,
                       const CallShape* shape, RememberedCall* made);

// Completes a call that was checked. It has no provider where the group's only rank serves it alone. An error says why
// nothing can serve it.
absl::Status ChooseService(const GroupContext& group, GroupProviders& providers, CallRecorder& recorder,
                           const CallOptions& options, RememberedCall* made);

}  // namespace cohort::comm
