// Makes prepared calls: checks what the caller passed, and finds out who serves the call and how. Nothing is sent.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "cohort/comm/group/call_memo.h"
#include "cohort/comm/group/call_recorder.h"
#include "cohort/comm/group/group_providers.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"

namespace cohort::comm {

// The first part of MakeCall: fills what follows from the arguments. `shape` is null for a call without one.
// kInvalidArgument: see MakeRequest, MakeUnequalRequest and ApplyOptions.
absl::Status CheckCall(const GroupContext& group, const CallArguments& arguments, const CallOptions& options,
                       const CallShape* shape, RememberedCall* made);

// A call as its caller passed it.
struct PassedCall {
  const CallArguments& arguments;
  const CallOptions& options;
  const CallShape* shape;  // null for a call without one
};

// Fills all of `*made`, which is allocated where it is null. The call has no provider where the group's only rank
// serves it alone. An error says why the call is wrong, or why nothing can serve it.
absl::Status MakeCall(const GroupContext& group, GroupProviders& providers, CallRecorder& recorder,
                      const PassedCall& call, std::unique_ptr<RememberedCall>* made);

}  // namespace cohort::comm
