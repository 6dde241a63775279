#include "cohort/comm/nccl/library/nccl_communicator.h"

#include <thread>
#include <utility>

#include "cohort/runtime/base/thread.h"

namespace cohort::comm::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// How long an orderly end may wait for what is enqueued and for the peers, before it becomes an abort.
constexpr std::chrono::seconds kFinalizeLimit(2);
// How long a revocation may take before it becomes an abort.
constexpr std::chrono::seconds kRevokeLimit(2);

ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

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

NcclCommunicator::Made NcclCommunicator::Start(const NcclApi* api, std::shared_ptr<Waker> waker, const ncclUniqueId& id,
                                               int rank, int size) {
  std::unique_ptr<NcclCommunicator> result(new NcclCommunicator(api, std::move(waker)));
  ncclConfig_t config = NonBlocking();
  const ncclResult_t started = api->ncclCommInitRankConfig(&result->communicator_, size, id, rank, &config);
  absl::Status status = api->ToStatus(started, nullptr, "making an NCCL communicator");
  if (status.ok()) return result;
  result->communicator_ = nullptr;
  return status;
}

NcclCommunicator::Made NcclCommunicator::Split(int color, int key) {
  std::unique_ptr<NcclCommunicator> result(new NcclCommunicator(api_, waker_));
  ncclConfig_t config = NonBlocking();
  config.splitShare = 1;
  result->abilities_ = abilities_;
  const ncclResult_t started =
      api_->ncclCommSplit(communicator_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &result->communicator_, &config);
  absl::Status status = api_->ToStatus(started, communicator_, "splitting an NCCL communicator");
  if (!status.ok()) result->communicator_ = nullptr;
  if (!status.ok()) return status;
  if (result->communicator_ == nullptr) return nullptr;
  return result;
}

NcclCommunicator::Made NcclCommunicator::Shrink(std::vector<int> excluded) {
  std::unique_ptr<NcclCommunicator> result(new NcclCommunicator(api_, waker_));
  ncclConfig_t config = NonBlocking();
  constexpr int kDefault = 0;  // NCCL_SHRINK_DEFAULT: nothing is under way
  const ncclResult_t started = api_->ncclCommShrink(communicator_, excluded.data(), static_cast<int>(excluded.size()),
                                                    &result->communicator_, &config, kDefault);
  absl::Status status = api_->ToStatus(started, communicator_, "shrinking an NCCL communicator");
  if (status.ok()) return result;
  result->communicator_ = nullptr;
  return status;
}

NcclCommunicator::~NcclCommunicator() {
  if (ending_ == nullptr) Abort();
  while (!Stopped()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

absl::StatusOr<bool> NcclCommunicator::Check() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_->ncclCommGetAsyncError(communicator_, &state);
  if (asked == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) [[likely]]
    return state == ncclSuccess;
  absl::Status status = api_->ToStatus(asked, communicator_, "asking NCCL for errors");
  if (status.ok()) status = api_->ToStatus(state, communicator_, "NCCL failed");
  return status;
}

bool NcclCommunicator::Revoke() {
  if (ending_ != nullptr || communicator_ == nullptr || api_->ncclCommRevoke == nullptr) return false;
  const ncclResult_t started = api_->ncclCommRevoke(communicator_, 0);
  revoking_ = started == ncclSuccess || started == ncclInProgress;
  revoke_deadline_ = Clock::now() + kRevokeLimit;
  return revoking_;
}

// A revoked communicator can't be finalized.
void NcclCommunicator::Close() { End(/*abort=*/revoking_); }
void NcclCommunicator::Abort() { End(/*abort=*/true); }

void NcclCommunicator::End(bool abort) {
  if (ending_ != nullptr) return;
  ending_ = std::make_shared<Ending>();
  ending_->deadline = Clock::now() + kEndLimit;
  if (communicator_ == nullptr) {
    ending_->finished = true;
    return;
  }
  const auto end = [api = api_, communicator = std::exchange(communicator_, nullptr), ending = ending_, waker = waker_,
                    abort] {
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
    waker->Wake();
  };
  // Left behind when NCCL never returns: it holds on to nothing of ours but what it shares.
  runtime::StartThread("cohort-nccl-end", end).detach();
}

bool NcclCommunicator::Stopped() {
  if (ending_ != nullptr) return ending_->finished.load() || Clock::now() >= ending_->deadline;
  if (!revoking_) return false;
  const absl::StatusOr<bool> state = Check();
  if (state.ok() && *state) return true;
  if (!state.ok() || Clock::now() >= revoke_deadline_) Abort();
  return false;
}

bool NcclCommunicator::left_behind() const {
  return ending_ != nullptr && !ending_->finished.load() && Clock::now() >= ending_->deadline;
}

}  // namespace cohort::comm::nccl
