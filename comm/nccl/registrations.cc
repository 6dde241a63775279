#include "cohort/comm/nccl/registrations.h"

namespace cohort::comm::nccl {
namespace {

bool HasWindows(const NcclApi& nccl) {
  return nccl.ncclCommWindowRegister != nullptr && nccl.ncclCommWindowDeregister != nullptr;
}

}  // namespace

bool Registrations::Possible(const NcclApi& nccl) {
  return HasWindows(nccl) || (nccl.ncclCommRegister != nullptr && nccl.ncclCommDeregister != nullptr);
}

absl::StatusOr<ncclResult_t> Registrations::Add(const NcclApi& nccl, ncclComm_t communicator, void* data, size_t bytes,
                                                const std::string& doing) {
  constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
  Registration& made = made_.emplace_back(Registration{nullptr, HasWindows(nccl)});
  const ncclResult_t result = made.window
                                  ? nccl.ncclCommWindowRegister(communicator, data, bytes, &made.handle, kSymmetric)
                                  : nccl.ncclCommRegister(communicator, data, bytes, &made.handle);
  if (absl::Status status = nccl.ToStatus(result, communicator, doing); !status.ok()) {
    made_.pop_back();
    return status;
  }
  return result;
}

void Registrations::ReleaseAll(const NcclApi& nccl, ncclComm_t communicator) {
  for (const Registration& made : made_) {
    if (made.handle == nullptr) continue;  // memory of a kind that NCCL has no window for
    (void)(made.window ? nccl.ncclCommWindowDeregister(communicator, made.handle)
                       : nccl.ncclCommDeregister(communicator, made.handle));
  }
}

}  // namespace cohort::comm::nccl
