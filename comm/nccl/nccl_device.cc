#include "comm/nccl/nccl_device.h"

#include <cstring>
#include <thread>
#include <utility>

#include "comm/nccl/nccl_calls.h"
#include "comm/nccl/nccl_exchange.h"
#include "runtime/base/status_macros.h"

namespace cohort::comm::nccl {

NcclDevice::~NcclDevice() {
  Deregister();
  if (scratch_ != nullptr) {
    const cuda::DeviceScope device(*context_.cuda, ordinal_);
    (void)context_.cuda->cudaFree(scratch_);
  }
  if (communicator_ == nullptr) return;
  if (context_.pool->busy(ordinal_) == communicator_.get()) context_.pool->busy(ordinal_) = nullptr;
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
    made = context_.pool->Revoked(group.shrunk_from, index_)->Shrink(group.lost);
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

// Waits for a call on the device that NCCL has not put on its stream yet, from below whose driving of the engine we
// come; or for a split of this communicator.
absl::Status NcclDevice::UntilFree(const std::string& name, runtime::Deadline deadline) {
  NcclCommunicator*& busy = context_.pool->busy(ordinal_);
  if (busy == nullptr && !settling_) [[likely]]
    return absl::OkStatus();
  const SharedCommunicator kept = communicator_;
  while (busy != nullptr) COHORT_RETURN_IF_ERROR(UntilIdle(std::exchange(busy, nullptr), deadline, name));
  if (settling_) COHORT_RETURN_IF_ERROR(UntilIdle(kept.get(), deadline, name));
  settling_ = false;
  return absl::OkStatus();
}

absl::Status NcclDevice::UntilOnStream(absl::StatusOr<ncclResult_t> launched, const std::string& name,
                                       runtime::Deadline deadline, bool drive) {
  if (!launched.ok()) return launched.status();
  if (*launched == ncclSuccess) [[likely]]
    return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(context_.nccl->ToStatus(*launched, communicator_->get(), name));
  // NCCL still works on it in a thread of its own: it is on the stream only when that has ended.
  if (!drive) {
    while (true) {
      const absl::StatusOr<bool> idle = communicator_->Check();
      if (!idle.ok()) return idle.status();
      if (*idle) return absl::OkStatus();
      if (deadline.passed()) return absl::DeadlineExceededError(name + ": not done in the time that the call allows");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  NcclCommunicator*& busy = context_.pool->busy(ordinal_);
  busy = communicator_.get();
  const absl::Status status = UntilIdle(communicator_.get(), deadline, name);
  if (busy == communicator_.get()) busy = nullptr;
  return status;
}

CallTarget NcclDevice::Target() {
  return {context_.nccl,        context_.cuda, communicator_->get(), nullptr, context_.group->rank,
          context_.group->size, scratch_,      &temporaries_};
}

absl::Status NcclDevice::EnqueueNative(std::span<const AcceptedCall* const> calls, const std::string& name,
                                       runtime::Deadline deadline) {
  COHORT_RETURN_IF_ERROR(UntilFree(name, deadline));
  absl::StatusOr<ncclResult_t> launched = ncclSuccess;
  {
    const runtime::MutexLock lock(IssuerOf(ordinal_));
    launched = calls.size() == 1 ? nccl::Enqueue(Target(), *calls[0]) : EnqueueBatch(Target(), calls);
  }
  const absl::Status status = UntilOnStream(std::move(launched), name, deadline);
  for (const auto& [memory, stream] : temporaries_) (void)context_.cuda->cudaFreeAsync(memory, stream);
  temporaries_.clear();
  return status;
}

absl::Status NcclDevice::EnqueueExchange(const AcceptedCall& call, const std::string& name,
                                         runtime::Deadline deadline) {
  CallTarget target = Target();
  target.stream = static_cast<cudaStream_t>(call.stream);
  NcclExchange exchange(target, kernels_, &call.request);
  const auto launch = [&](absl::StatusOr<ncclResult_t> (NcclExchange::*step)(), bool drive) {
    if (drive) COHORT_RETURN_IF_ERROR(UntilFree(name, deadline));
    absl::StatusOr<ncclResult_t> launched = ncclSuccess;
    {
      const runtime::MutexLock lock(IssuerOf(ordinal_));
      launched = (exchange.*step)();
    }
    return UntilOnStream(std::move(launched), name, deadline, drive);
  };
  COHORT_RETURN_IF_ERROR(UntilFree(name, deadline));
  COHORT_RETURN_IF_ERROR(exchange.Begin());
  // The first exchange makes connections, and the engine is driven meanwhile. A call that comes from there must find
  // the same order everywhere, so it may not come between the two launches of one: then they are made beforehand.
  if (exchange.Collects() && !exchanged_) {
    COHORT_RETURN_IF_ERROR(launch(&NcclExchange::Spread, true));
    exchanged_ = true;
  }
  COHORT_RETURN_IF_ERROR(launch(&NcclExchange::Spread, !exchange.Collects()));
  COHORT_RETURN_IF_ERROR(exchange.Fold());
  if (exchange.Collects()) COHORT_RETURN_IF_ERROR(launch(&NcclExchange::Collect, false));
  return exchange.End();
}

std::string NcclDevice::WhyStaged(const CollectiveRequest& request) const {
  if (communicator_ == nullptr) return staged_;
  return communicator_->abilities().kernels ? "" : WhyNot(request);
}

absl::Status NcclDevice::Enqueue(std::span<const AcceptedCall* const> calls, runtime::Deadline deadline) {
  const std::string name(comm::Name(calls[0]->request.kind));
  if (calls.size() == 1) {
    if (WhyNot(calls[0]->request).empty()) [[likely]]
      return EnqueueNative(calls, name, deadline);
    return EnqueueExchange(*calls[0], name, deadline);
  }
  native_.clear();
  for (const AcceptedCall* call : calls) {
    if (WhyNot(call->request).empty()) native_.push_back(call);
  }
  if (!native_.empty()) COHORT_RETURN_IF_ERROR(EnqueueNative(native_, name, deadline));
  for (const AcceptedCall* call : calls) {
    if (!WhyNot(call->request).empty()) COHORT_RETURN_IF_ERROR(EnqueueExchange(*call, name, deadline));
  }
  return absl::OkStatus();
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
  if (context_.pool->busy(ordinal_) == communicator_.get()) context_.pool->busy(ordinal_) = nullptr;
  // Kept for Shrink where NCCL can do both; no use after an error that NCCL itself has.
  if (context_.nccl->ncclCommShrink != nullptr && communicator_->Check().ok() && communicator_->Revoke()) {
    context_.pool->PutRevoked(context_.group->id, index_, communicator_);
  } else {
    communicator_->Abort();
  }
}

bool NcclDevice::Stopped() { return communicator_ == nullptr || communicator_->Stopped(); }

absl::Status NcclDevice::Register(void* data, size_t bytes) {
  if (communicator_ == nullptr || bytes == 0) return absl::OkStatus();
  const NcclApi& nccl = *context_.nccl;
  Registration made{nullptr, nccl.ncclCommWindowRegister != nullptr && nccl.ncclCommWindowDeregister != nullptr};
  if (!made.window && (nccl.ncclCommRegister == nullptr || nccl.ncclCommDeregister == nullptr)) return absl::OkStatus();
  constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
  const runtime::MutexLock lock(IssuerOf(ordinal_));
  const ncclResult_t result =
      made.window ? nccl.ncclCommWindowRegister(communicator_->get(), data, bytes, &made.handle, kSymmetric)
                  : nccl.ncclCommRegister(communicator_->get(), data, bytes, &made.handle);
  COHORT_RETURN_IF_ERROR(nccl.ToStatus(result, communicator_->get(), "registering device memory"));
  settling_ = result == ncclInProgress;
  registrations_.push_back(made);
  return absl::OkStatus();
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
