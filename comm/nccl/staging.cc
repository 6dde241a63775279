#include "cohort/comm/nccl/staging.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cohort::comm::nccl {

Staging::Staging(const GroupContext* group, const cuda::CudaApi* cuda,
                 decltype(NcclOptions::make_host_provider) make_host, StagedCalls::Drive drive)
    : group_(group), cuda_(cuda), make_host_(std::move(make_host)), drive_(std::move(drive)) {}

// Its stages are in use, and who waits below us on the stack can't go on before this call is done: peers that are to
// come to that call first would never get there.
absl::Status Staging::Nested(CollectiveKind kind) {
  return absl::FailedPreconditionError(
      std::string(Name(kind)) +
      " would go through host memory, as a call of the group does that is still under way, and comes from inside that "
      "one: wait for the first call before anything that calls back makes others");
}

absl::Status Staging::Run(size_t index, int ordinal, const AcceptedCall& call) {
  if (call_ != nullptr) return Nested(call.request.kind);
  if (devices_.size() <= index) devices_.resize(index + 1);
  std::unique_ptr<StagedCalls>& stages = devices_[index];
  if (stages == nullptr) {
    const auto make = [this, index](bool messages) { return make_host_(messages, static_cast<int>(index)); };
    stages = std::make_unique<StagedCalls>(group_, cuda_, ordinal, make, drive_);
  }
  StagedCalls* const running = stages.get();  // running it may call back, and make others'
  call_ = &call;
  const absl::Status status = running->Run(call);
  call_ = nullptr;
  return status;
}

bool Staging::Active() const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [](const auto& stages) { return stages != nullptr && stages->Active(); });
}

void Staging::Fail(const absl::Status& status) {
  for (const auto& stages : devices_) {
    if (stages != nullptr) stages->Fail(status);
  }
}

}  // namespace cohort::comm::nccl
