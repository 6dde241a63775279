// A provider serves whole collective calls. `nccl` (CUDA memory) enqueues one NCCL call; `plan` (everything else) runs a
// plan over transports. The selector chooses; adding a provider is one folder and one line in providers.def.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "comm/request.h"
#include "runtime/segment/call_record.h"
#include "runtime/work.h"

namespace cohort::comm {

class Provider {
 public:
  virtual ~Provider() = default;
  virtual std::string_view name() const = 0;
  // Pure in what all members share (kind, dtype, op, memory kind): every member must decide alike.
  virtual absl::Status Supports(const CollectiveRequest& request) const = 0;
  // Starts the validated request. `record` is its black-box record, started. Called with engine ownership.
  virtual runtime::Work Launch(const CollectiveRequest& request, const CallOptions& options,
                               const runtime::CallRecord& record) = 0;
  // The group has failed: complete everything with `status`, bounded in time, and refuse what comes later.
  virtual void Fail(const absl::Status& status) = 0;
};

}  // namespace cohort::comm
