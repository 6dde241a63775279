#include "cohort/comm/nccl/nccl_device.h"

#include <cstring>
#include <thread>
#include <utility>

#include "cohort/comm/nccl/alone.h"
#include "cohort/comm/nccl/library/left_behind.h"
#include "cohort/comm/nccl/nccl_calls.h"
#include "cohort/comm/nccl/nccl_issue.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::nccl {

NcclDevice::~NcclDevice() {
  if (communicator_ != nullptr && communicator_->get() != nullptr && !HasEnded(life_)) {
    const runtime::MutexLock lock(IssuerOf(ordinal_));
    registrations_.ReleaseAll(*context_.nccl, communicator_->launcher());
  }
  turn_.Forget();
  AwaitStop();
  Keep(scratch_);
  FreeKept();
  LeaveBehind(kept_);
  if (communicator_ == nullptr) return;
  if (!HasEnded(life_) && !settling_)
    context_.pool->PutIdle({StoreKey(), communicator_}, context_.group->members, ordinal_);
}

std::string NcclDevice::StoreKey() const {
  return "nccl/" + std::to_string(context_.group->epoch) + "/" + std::to_string(context_.group->id) + "/" +
         std::to_string(index_);
}

Abilities NcclDevice::MyAbilities() const {
  int major = 0;
  (void)context_.cuda->cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal_);
  Abilities abilities;
  abilities.float8 = context_.nccl != nullptr && context_.nccl->version >= kFloat8Version && major >= 9;
  abilities.kernels = context_.pool->KernelsOf(*context_.cuda, ordinal_) != nullptr;
  abilities.stops =
      context_.nccl != nullptr && context_.nccl->ncclCommSplit != nullptr && context_.nccl->ncclCommRevoke != nullptr;
  return abilities;
}

absl::Status NcclDevice::Prepare(runtime::Deadline deadline) {
  life_.Enter(DeviceLife::kPreparing);
  absl::Status status = Join(deadline);
  if (life_ == DeviceLife::kPreparing) life_.Enter(DeviceLife::kReady);  // else the group has failed meanwhile
  return status;
}

absl::Status NcclDevice::Join(runtime::Deadline deadline) {
  const GroupContext& group = *context_.group;
  if (group.size == 1) return absl::OkStatus();
  NcclPool& pool = *context_.pool;
  // Taken now, as Obtain takes others: another group may look for one, or put more than are kept, while this one waits.
  NcclPool::Named revoked = pool.TakeRevoked(group.shrunk_from, ordinal_);
  absl::Status status = Obtain(revoked, deadline);
  if (!status.ok() && revoked.communicator != nullptr) {
    pool.PutRevoked(group.shrunk_from, ordinal_, std::move(revoked));  // what is left of it may not be there yet
  }
  return status;
}

absl::Status NcclDevice::Obtain(const NcclPool::Named& revoked, runtime::Deadline deadline) {
  const GroupContext& group = *context_.group;
  NcclPool& pool = *context_.pool;
  NcclPool::Named idle = pool.TakeChild(group.id, ordinal_);
  if (idle.communicator == nullptr) idle = pool.TakeIdle(group.members, ordinal_);
  const absl::StatusOr<Decision> decision = AgreeOn(idle, revoked, deadline);
  const bool reuse = decision.ok() && decision->kind == Decision::Kind::kReuse && decision->text == idle.name;
  if (reuse) communicator_ = std::move(idle.communicator);
  if (idle.communicator != nullptr) pool.PutIdle(std::move(idle), group.members, ordinal_);
  if (!decision.ok()) return decision.status();
  if (!reuse) COHORT_RETURN_IF_ERROR(Make(*decision, revoked.communicator.get()));
  if (communicator_ == nullptr) return absl::OkStatus();  // staged
  communicator_->set_abilities(decision->abilities);
  COHORT_RETURN_IF_ERROR(UntilIdle(communicator_.get(), deadline, "making an NCCL communicator"));
  COHORT_RETURN_IF_ERROR(MakeLauncher(deadline));
  kernels_ = pool.KernelsOf(*context_.cuda, ordinal_);
  return context_.cuda->ToStatus(context_.cuda->cudaMalloc(&scratch_, sizeof(int64_t)), "allocating 8 bytes");
}

// All members have one or none has: communicators are used again under the name that all know.
absl::Status NcclDevice::MakeLauncher(runtime::Deadline deadline) {
  if (communicator_->has_launcher() || !communicator_->abilities().stops) return absl::OkStatus();
  {
    const runtime::MutexLock lock(IssuerOf(ordinal_));
    COHORT_RETURN_IF_ERROR(communicator_->MakeLauncher());
  }
  return UntilIdle(communicator_.get(), deadline, "making an NCCL communicator");
}

absl::StatusOr<Decision> NcclDevice::AgreeOn(const NcclPool::Named& idle, const NcclPool::Named& revoked,
                                             runtime::Deadline deadline) {
  Offer offer;
  offer.version = context_.nccl == nullptr ? 0 : context_.nccl->version;
  offer.why = context_.why;
  offer.abilities = MyAbilities();
  offer.settings = context_.settings;
  offer.idle = idle.name;
  const SharedCommunicator& stopped = revoked.communicator;
  if (stopped != nullptr && stopped->Stopped() && stopped->get() != nullptr) offer.revoked = revoked.name;
  const auto make_id = [this]() -> absl::StatusOr<std::string> {
    ncclUniqueId id;
    COHORT_RETURN_IF_ERROR(
        context_.nccl->ToStatus(context_.nccl->ncclGetUniqueId(&id), nullptr, "asking NCCL for an id"));
    return std::string(id.internal, sizeof id.internal);
  };
  Waits waits;
  waits.drive = [&](const std::function<bool()>& done, const std::string& doing) {
    return context_.drive(done, deadline, doing);
  };
  waits.wake = [waker = context_.pool->waker()] { waker->Wake(); };
  return Agree(*context_.group, StoreKey(), offer, make_id, deadline, waits);
}

absl::Status NcclDevice::Make(const Decision& decision, NcclCommunicator* revoked) {
  const GroupContext& group = *context_.group;
  if (decision.kind == Decision::Kind::kRefuse) return absl::FailedPreconditionError(decision.text);
  if (decision.kind == Decision::Kind::kStaged) {
    staged_ = decision.text;
    return absl::OkStatus();
  }
  if (decision.kind == Decision::Kind::kReuse) {
    return absl::InternalError("this rank has not offered the NCCL communicator to be used again, " + decision.text);
  }
  const runtime::MutexLock lock(IssuerOf(ordinal_));
  NcclCommunicator::Made made = nullptr;
  if (decision.kind == Decision::Kind::kShrink) {
    if (revoked == nullptr || revoked->get() == nullptr) {
      return absl::InternalError("the NCCL communicator to be shrunk is gone");
    }
    made = revoked->Shrink(group.lost);
  } else if (context_.nccl == nullptr) {
    return absl::InternalError("NCCL was chosen for a rank that has none: " + context_.why);
  } else {
    ncclUniqueId id;
    std::memcpy(id.internal, decision.text.data(), sizeof id.internal);
    made = NcclCommunicator::Start(context_.nccl, context_.pool->waker(), id, group.rank, group.size);
  }
  if (!made.ok()) return made.status();
  communicator_ = *std::move(made);
  return absl::OkStatus();
}

absl::Status NcclDevice::RunAlone(const CollectiveRequest& request, cudaStream_t stream, bool captured) {
  if (!Scales(request)) return CopyAlone(*context_.cuda, request, stream);
  if (kernels_ == nullptr && captured) {
    return absl::FailedPreconditionError(
        "the group's first reduction with a factor on this device can't be captured into a CUDA graph: its kernels are "
        "loaded in it; make the same call before the capture");
  }
  if (kernels_ == nullptr) kernels_ = context_.pool->KernelsOf(*context_.cuda, ordinal_);
  if (kernels_ == nullptr) {
    return absl::UnimplementedError(
        std::string(Name(request.kind)) +
        " with a factor in a group of one rank needs Cohort's kernels for CUDA devices, which this build lacks (nvcc) "
        "or the driver refuses: multiply the input instead");
  }
  return ScaleAlone(*context_.cuda, *kernels_, request, stream);
}

absl::Status NcclDevice::UntilIdle(NcclCommunicator* communicator, runtime::Deadline deadline,
                                   const std::string& doing) {
  while (true) {
    const absl::StatusOr<bool> idle = communicator->Check();
    if (!idle.ok()) return idle.status();
    if (*idle) return absl::OkStatus();
    COHORT_RETURN_IF_ERROR(context_.drive_on(deadline, doing));
  }
}

CallTarget NcclDevice::Target() {
  return {context_.nccl, context_.cuda, communicator_->launcher(), nullptr, context_.group->rank, context_.group->size,
          scratch_,      &temporaries_};
}

std::string NcclDevice::WhyStaged(const CollectiveRequest& request) const {
  if (communicator_ == nullptr) return staged_;
  return communicator_->abilities().kernels ? "" : WhyNot(request);
}

absl::Status NcclDevice::Enqueue(std::span<const IssuedCall> calls, runtime::Deadline deadline) {
  return NcclIssue(this, calls, deadline).Run();
}

absl::Status NcclDevice::Check() {
  if (communicator_ == nullptr || HasEnded(life_)) return absl::OkStatus();
  return communicator_->Check().status();
}

// All members split or none does: what decides is equal on all, and whether NCCL still works on an earlier split, which
// each rank learns in its own time, is waited for.
absl::Status NcclDevice::Split(int color, int key, uint64_t child, runtime::Deadline deadline) {
  if (communicator_ == nullptr || context_.nccl->ncclCommSplit == nullptr) return absl::OkStatus();
  const cuda::DeviceScope device(*context_.cuda, ordinal_);
  COHORT_RETURN_IF_ERROR(device.status());
  const SharedCommunicator parent = communicator_;
  COHORT_RETURN_IF_ERROR(UntilIdle(parent.get(), deadline, "splitting an NCCL communicator"));
  const runtime::MutexLock lock(IssuerOf(ordinal_));
  NcclCommunicator::Made made = parent->Split(color, key);
  settling_ = true;
  if (!made.ok()) return made.status();
  if (*made != nullptr) {
    const std::string name = "split/" + std::to_string(child) + "/" + std::to_string(index_);
    context_.pool->PutChild(child, ordinal_, {name, *std::move(made)});
  }
  return absl::OkStatus();
}

void NcclDevice::Stop() {
  if (life_ == DeviceLife::kFresh || HasEnded(life_)) return;
  life_.Enter(communicator_ == nullptr ? DeviceLife::kStopped : DeviceLife::kStopping);
  if (communicator_ == nullptr) return;
  // Kept for Shrink where NCCL can do both; no use after an error that NCCL itself has.
  if (context_.nccl->ncclCommShrink != nullptr && communicator_->Check().ok() && communicator_->Revoke()) {
    context_.pool->PutRevoked(context_.group->id, ordinal_, {StoreKey(), communicator_});
  } else {
    communicator_->Abort();
  }
}

bool NcclDevice::Stopped() {
  if (life_ == DeviceLife::kStopping && communicator_->Stopped()) life_.Enter(DeviceLife::kStopped);
  return life_ == DeviceLife::kStopped || life_ == DeviceLife::kFresh;
}

void NcclDevice::AwaitStop() {
  while (HasEnded(life_) && !Stopped()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void NcclDevice::FreeKept() {
  if (left_behind()) return;
  for (const std::shared_ptr<NcclExchange>& exchange : left_) Keep(exchange->TakeMemory());
  left_.clear();
  for (const auto& [memory, stream] : temporaries_) Keep(memory);
  temporaries_.clear();
  if (kept_.empty()) return;
  const cuda::DeviceScope device(*context_.cuda, ordinal_);
  for (void* memory : kept_) (void)context_.cuda->cudaFree(memory);
  kept_.clear();
}

absl::Status NcclDevice::Register(void* data, size_t bytes, runtime::Deadline deadline) {
  if (communicator_ == nullptr || bytes == 0 || !Registrations::Possible(*context_.nccl)) return absl::OkStatus();
  const std::string doing = "registering device memory";
  const SharedCommunicator kept = communicator_;
  COHORT_RETURN_IF_ERROR(UntilIdle(kept.get(), deadline, doing));  // a split, a call that makes connections
  // Collective: NCCL may wait in it for the others.
  const auto add = [this, data, bytes, doing]() -> absl::StatusOr<ncclResult_t> {
    const cuda::DeviceScope device(*context_.cuda, ordinal_);
    COHORT_RETURN_IF_ERROR(device.status());
    return registrations_.Add(*context_.nccl, communicator_->launcher(), data, bytes, doing);
  };
  {
    const runtime::MutexLock lock(IssuerOf(ordinal_));
    if (communicator_->has_launcher()) {
      COHORT_RETURN_IF_ERROR(communicator_->StartCall(doing, add));
    } else {
      COHORT_RETURN_IF_ERROR(add().status());
    }
    settling_ = true;
  }
  known_ = {};  // NCCL may serve them another way now
  COHORT_RETURN_IF_ERROR(UntilIdle(kept.get(), deadline, doing));
  settling_ = false;
  return absl::OkStatus();
}

}  // namespace cohort::comm::nccl
