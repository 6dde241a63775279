// The calls of a group that go through host memory: one at a time, with the stages of each device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/nccl/nccl_provider.h"
#include "cohort/comm/nccl/staged_calls.h"
#include "cohort/comm/provider/provider.h"

namespace cohort::comm::nccl {

class Staging {
 public:
  // `group` and `cuda` outlive it. Without `make_host` no call can be staged.
  Staging(const GroupContext* group, const cuda::CudaApi* cuda, decltype(NcclOptions::make_host_provider) make_host,
          StagedCalls::Drive drive);

  bool possible() const { return make_host_ != nullptr; }
  // The call that is being staged, or null.
  const AcceptedCall* call() const { return call_; }
  // The refusal of another call meanwhile.
  static absl::Status Nested(CollectiveKind kind);

  // `index`: which of the group's devices; `ordinal`: CUDA's number of it. See StagedCalls::Run. Possible.
  absl::Status Run(size_t index, int ordinal, const AcceptedCall& call);
  bool Poll(size_t index) { return index < devices_.size() && devices_[index] != nullptr && devices_[index]->Poll(); }
  bool Active() const;
  void Fail(const absl::Status& status);
  // See ~StagedCalls.
  void Clear() { devices_.clear(); }

 private:
  const GroupContext* const group_;
  const cuda::CudaApi* const cuda_;
  const decltype(NcclOptions::make_host_provider) make_host_;
  const StagedCalls::Drive drive_;
  std::vector<std::unique_ptr<StagedCalls>> devices_;  // null where not needed yet
  const AcceptedCall* call_ = nullptr;
};

}  // namespace cohort::comm::nccl
