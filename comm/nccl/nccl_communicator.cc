#include "comm/nccl/nccl_communicator.h"

#include <thread>
#include <utility>

#include "runtime/thread.h"

namespace cohort::comm::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// How long an orderly end may wait for what is enqueued and for the peers, before it becomes an abort.
constexpr std::chrono::seconds kFinalizeLimit(2);

bool FinishedInTime(const NcclApi& api, ncclComm_t communicator) {
  const Clock::time_point deadline = Clock::now() + kFinalizeLimit;
  while (true) {
    ncclResult_t state = ncclSuccess;
    if (api.ncclCommGetAsyncError(communicator, &state) != ncclSuccess) return false;
    if (state != ncclInProgress) return state == ncclSuccess;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Start(const NcclApi* api, const ncclUniqueId& id,
                                                                          int rank, int size) {
  std::unique_ptr<NcclCommunicator> result(new NcclCommunicator(api));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t started = api->ncclCommInitRankConfig(&result->communicator_, size, id, rank, &config);
  const absl::Status status = api->ToStatus(started, nullptr, "making an NCCL communicator");
  if (!status.ok()) {
    result->communicator_ = nullptr;
    return status;
  }
  return result;
}

NcclCommunicator::~NcclCommunicator() {
  if (ending_ == nullptr) Abort();
  while (!Ended()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

absl::StatusOr<bool> NcclCommunicator::Check() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_->ncclCommGetAsyncError(communicator_, &state);
  absl::Status status = api_->ToStatus(asked, communicator_, "asking NCCL for errors");
  if (status.ok()) status = api_->ToStatus(state, communicator_, "NCCL failed");
  if (!status.ok()) return status;
  return state == ncclSuccess;
}

void NcclCommunicator::Close() { End(/*abort=*/false); }
void NcclCommunicator::Abort() { End(/*abort=*/true); }

void NcclCommunicator::End(bool abort) {
  if (ending_ != nullptr) return;
  ending_ = std::make_shared<Ending>();
  ending_->deadline = Clock::now() + kEndLimit;
  if (communicator_ == nullptr) {
    ending_->finished = true;
    return;
  }
  const auto end = [api = api_, communicator = std::exchange(communicator_, nullptr), ending = ending_, abort] {
    const auto closes_in_order = [&] {
      const ncclResult_t result = api->ncclCommFinalize(communicator);
      return (result == ncclSuccess || result == ncclInProgress) && FinishedInTime(*api, communicator);
    };
    if (!abort && closes_in_order()) {
      (void)api->ncclCommDestroy(communicator);
    } else {
      (void)api->ncclCommAbort(communicator);
    }
    ending->finished = true;
  };
  // Left behind when NCCL never returns: it holds on to nothing of ours but `ending`.
  runtime::StartThread("cohort-nccl-end", end).detach();
}

bool NcclCommunicator::Ended() {
  return ending_ != nullptr && (ending_->finished.load() || Clock::now() >= ending_->deadline);
}

}  // namespace cohort::comm::nccl
