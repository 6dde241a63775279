#include "comm/nccl/nccl_device.h"

#include <cstring>
#include <thread>
#include <utility>

#include "comm/nccl/nccl_calls.h"
#include "comm/nccl/nccl_issue.h"
#include "runtime/base/status_macros.h"

namespace cohort::comm::nccl {

namespace {

// Memory that an abort which hangs may still use: held for as long as the process lives.
void LeaveBehind(const std::vector<void*>& memory) {
  if (memory.empty()) return;
  static runtime::Mutex& mutex = *new runtime::Mutex;
  static std::vector<void*>& held = *new std::vector<void*>;
  const runtime::MutexLock lock(mutex);
  held.insert(held.end(), memory.begin(), memory.end());
}

}  // namespace

NcclDevice::~NcclDevice() {
  Deregister();
  ForgetIssued();
  while (stopping_ && !Stopped()) std::this_thread::sleep_for(std::chrono::microseconds(200));  // bounded
  Keep(scratch_);
  FreeKept();
  LeaveBehind(kept_);
  if (communicator_ == nullptr) return;
  if (!stopping_ && !settling_) context_.pool->PutIdle(StoreKey(), context_.group->members, ordinal_, communicator_);
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
  return abilities;
}

absl::Status NcclDevice::Prepare(runtime::Deadline deadline) {
  preparing_ = true;
  absl::Status status = Join(deadline);
  preparing_ = false;
  return status;
}

absl::Status NcclDevice::Join(runtime::Deadline deadline) {
  const GroupContext& group = *context_.group;
  prepared_ = true;
  if (group.size == 1) return absl::OkStatus();
  communicator_ = context_.pool->TakeChild(group.id, index_);
  if (communicator_ == nullptr) {
    Offer offer;
    offer.version = context_.nccl == nullptr ? 0 : context_.nccl->version;
    offer.why = context_.why;
    offer.abilities = MyAbilities();
    offer.settings = context_.settings;
    offer.idle = context_.pool->IdleName(group.members, ordinal_);
    const SharedCommunicator revoked = context_.pool->Revoked(group.shrunk_from, index_);
    offer.shrinkable = revoked != nullptr && revoked->Stopped() && revoked->get() != nullptr;
    const auto make_id = [this]() -> absl::StatusOr<std::string> {
      ncclUniqueId id;
      COHORT_RETURN_IF_ERROR(
          context_.nccl->ToStatus(context_.nccl->ncclGetUniqueId(&id), nullptr, "asking NCCL for an id"));
      return std::string(id.internal, sizeof id.internal);
    };
    const Drive drive = [&](const std::string& doing) {
      return context_.drive(std::chrono::microseconds(100), deadline, doing);
    };
    COHORT_ASSIGN_OR_RETURN(const Decision decision, Agree(group, StoreKey(), offer, make_id, deadline, drive));
    COHORT_RETURN_IF_ERROR(Make(decision));
  }
  if (communicator_ == nullptr) return absl::OkStatus();  // staged
  COHORT_RETURN_IF_ERROR(UntilIdle(communicator_.get(), deadline, "making an NCCL communicator"));
  context_.pool->DropRevoked(group.shrunk_from, index_);
  kernels_ = context_.pool->KernelsOf(*context_.cuda, ordinal_);
  return context_.cuda->ToStatus(context_.cuda->cudaMalloc(&scratch_, sizeof(int64_t)), "allocating 8 bytes");
}

absl::Status NcclDevice::Make(const Decision& decision) {
  const GroupContext& group = *context_.group;
  if (decision.kind == Decision::Kind::kRefuse) return absl::FailedPreconditionError(decision.text);
  if (decision.kind == Decision::Kind::kStaged) {
    staged_ = decision.text;
    return absl::OkStatus();
  }
  if (decision.kind == Decision::Kind::kReuse) {
    communicator_ = context_.pool->TakeIdle(decision.text);
    if (communicator_ != nullptr) {
      communicator_->set_abilities(decision.abilities);
      return absl::OkStatus();
    }
    return absl::InternalError("the NCCL communicator to be used again, " + decision.text + ", is gone");
  }
  const runtime::MutexLock lock(IssuerOf(ordinal_));
  NcclCommunicator::Made made = nullptr;
  if (decision.kind == Decision::Kind::kShrink) {
    const SharedCommunicator revoked = context_.pool->Revoked(group.shrunk_from, index_);
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
  communicator_->set_abilities(decision.abilities);
  return absl::OkStatus();
}

absl::Status NcclDevice::UntilIdle(NcclCommunicator* communicator, runtime::Deadline deadline,
                                   const std::string& doing) {
  while (true) {
    const absl::StatusOr<bool> idle = communicator->Check();
    if (!idle.ok()) return idle.status();
    if (*idle) return absl::OkStatus();
    COHORT_RETURN_IF_ERROR(context_.drive(std::chrono::microseconds(50), deadline, doing));
  }
}

CallTarget NcclDevice::Target() {
  return {context_.nccl,        context_.cuda, communicator_->get(), nullptr, context_.group->rank,
          context_.group->size, scratch_,      &temporaries_};
}

std::string NcclDevice::WhyStaged(const CollectiveRequest& request) const {
  if (communicator_ == nullptr) return staged_;
  return communicator_->abilities().kernels ? "" : WhyNot(request);
}

absl::Status NcclDevice::Enqueue(std::span<const IssuedCall> calls, runtime::Deadline deadline) {
  return NcclIssue(this, calls, deadline).Run();
}

absl::Status NcclDevice::KeepOrder(cudaStream_t stream) const {
  const NcclPool::Issued& issued = context_.pool->issued(ordinal_);
  if (issued.device == nullptr || issued.device == this || !context_.guards_order) [[likely]]
    return absl::OkStatus();
  return context_.cuda->ToStatus(context_.cuda->cudaStreamWaitEvent(stream, issued.event, 0),
                                 "ordering the calls of two communicators");
}

void NcclDevice::NoteIssued(cudaEvent_t event) { context_.pool->issued(ordinal_) = {this, event}; }

void NcclDevice::ForgetIssued(cudaEvent_t event) {
  NcclPool::Issued& issued = context_.pool->issued(ordinal_);
  if (issued.event == event) issued = {};
}

void NcclDevice::ForgetIssued() {
  NcclPool::Issued& issued = context_.pool->issued(ordinal_);
  if (issued.device == this) issued = {};
}

absl::Status NcclDevice::Check() {
  if (communicator_ == nullptr || stopping_) return absl::OkStatus();
  return communicator_->Check().status();
}

void NcclDevice::Split(int color, int key, uint64_t child) {
  if (communicator_ == nullptr || context_.nccl->ncclCommSplit == nullptr || settling_) return;
  const cuda::DeviceScope device(*context_.cuda, ordinal_);
  const runtime::MutexLock lock(IssuerOf(ordinal_));
  NcclCommunicator::Made made = communicator_->Split(color, key);
  settling_ = true;
  if (!made.ok()) {
    context_.group->fail(made.status(), -1);
  } else if (*made != nullptr) {
    context_.pool->PutChild(child, index_, *std::move(made));
  }
}

void NcclDevice::Stop() {
  if (communicator_ == nullptr || stopping_) return;
  stopping_ = true;
  // Kept for Shrink where NCCL can do both; no use after an error that NCCL itself has.
  if (context_.nccl->ncclCommShrink != nullptr && communicator_->Check().ok() && communicator_->Revoke()) {
    context_.pool->PutRevoked(context_.group->id, index_, communicator_);
  } else {
    communicator_->Abort();
  }
}

bool NcclDevice::Stopped() {
  stopped_ = stopped_ || communicator_ == nullptr || communicator_->Stopped();
  return stopped_;
}

void NcclDevice::FreeKept() {
  if (kept_.empty() || left_behind()) return;
  const cuda::DeviceScope device(*context_.cuda, ordinal_);
  for (void* memory : kept_) (void)context_.cuda->cudaFree(memory);
  kept_.clear();
}

absl::Status NcclDevice::Settle(runtime::Deadline deadline, const std::string& doing) {
  if (!settling_) return absl::OkStatus();
  const SharedCommunicator kept = communicator_;
  COHORT_RETURN_IF_ERROR(UntilIdle(kept.get(), deadline, doing));
  settling_ = false;
  return absl::OkStatus();
}

absl::Status NcclDevice::Register(void* data, size_t bytes, runtime::Deadline deadline) {
  if (communicator_ == nullptr || bytes == 0) return absl::OkStatus();
  const NcclApi& nccl = *context_.nccl;
  const bool window = nccl.ncclCommWindowRegister != nullptr && nccl.ncclCommWindowDeregister != nullptr;
  if (!window && (nccl.ncclCommRegister == nullptr || nccl.ncclCommDeregister == nullptr)) return absl::OkStatus();
  constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
  const std::string doing = "registering device memory";
  COHORT_RETURN_IF_ERROR(Settle(deadline, doing));  // after a split, which NCCL may still be at
  Registration& made = registrations_.emplace_back(Registration{nullptr, window});
  {
    const runtime::MutexLock lock(IssuerOf(ordinal_));
    const ncclResult_t result =
        window ? nccl.ncclCommWindowRegister(communicator_->get(), data, bytes, &made.handle, kSymmetric)
               : nccl.ncclCommRegister(communicator_->get(), data, bytes, &made.handle);
    settling_ = result == ncclInProgress;
    if (absl::Status status = nccl.ToStatus(result, communicator_->get(), doing); !status.ok()) {
      registrations_.pop_back();
      return status;
    }
  }
  return Settle(deadline, doing);
}

void NcclDevice::Deregister() {
  if (communicator_ == nullptr || communicator_->get() == nullptr || stopping_) return;
  const runtime::MutexLock lock(IssuerOf(ordinal_));
  for (const Registration& made : registrations_) {
    if (made.handle == nullptr) continue;  // memory of a kind that NCCL has no window for
    (void)(made.window ? context_.nccl->ncclCommWindowDeregister(communicator_->get(), made.handle)
                       : context_.nccl->ncclCommDeregister(communicator_->get(), made.handle));
  }
}

}  // namespace cohort::comm::nccl
