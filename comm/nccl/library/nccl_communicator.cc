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
// How long a call may take to return when its communicator has been revoked.
constexpr std::chrono::seconds kReturnLimit(1);

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

// Waits until a thread's work is done; not for ever.
bool Returned(const std::atomic<bool>& finished) {
  const Clock::time_point deadline = Clock::now() + kReturnLimit;
  while (!finished.load(std::memory_order_acquire) && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return finished.load(std::memory_order_acquire);
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

absl::Status NcclCommunicator::MakeLauncher() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.splitShare = 1;
  const ncclResult_t started = api_->ncclCommSplit(communicator_, /*color=*/0, /*key=*/0, &launcher_, &config);
  absl::Status status = api_->ToStatus(started, communicator_, "making an NCCL communicator");
  if (!status.ok()) launcher_ = nullptr;
  return status;
}

ncclResult_t NcclCommunicator::StartCall(std::function<absl::StatusOr<ncclResult_t>()> call) {
  calling_ = std::make_shared<Calling>();
  runtime::StartThread("cohort-nccl-call", [calling = calling_, call = std::move(call), waker = waker_] {
    calling->result = call();
    calling->finished.store(true, std::memory_order_release);
    waker->Wake();
  }).detach();
  return ncclInProgress;
}

NcclCommunicator::~NcclCommunicator() {
  if (ending_ == nullptr) Abort();
  while (!Stopped()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

absl::StatusOr<bool> NcclCommunicator::CheckOne(ncclComm_t communicator) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_->ncclCommGetAsyncError(communicator, &state);
  if (asked == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) [[likely]]
    return state == ncclSuccess;
  absl::Status status = api_->ToStatus(asked, communicator, "asking NCCL for errors");
  if (status.ok()) status = api_->ToStatus(state, communicator, "NCCL failed");
  return status;
}

absl::StatusOr<bool> NcclCommunicator::Check() {
  if (calling()) return false;
  if (calling_ != nullptr) {
    const std::shared_ptr<Calling> call = std::exchange(calling_, nullptr);
    if (!call->result.ok()) return call->result.status();
    if (const absl::Status status = api_->ToStatus(*call->result, launcher(), "NCCL failed"); !status.ok())
      return status;
  }
  absl::StatusOr<bool> idle = CheckOne(communicator_);
  // While the launcher is being made, the control says so.
  if (launcher_ != nullptr && idle.ok() && *idle) idle = CheckOne(launcher_);
  return idle;
}

bool NcclCommunicator::Revoke() {
  if (ending_ != nullptr || launcher_ == nullptr) return false;
  revoking_ = std::make_shared<Ending>();
  revoking_->deadline = Clock::now() + kRevokeLimit;
  // It blocks until what is enqueued has been stopped.
  const auto revoke = [api = api_, launcher = launcher_, calling = calling_, revoking = revoking_, waker = waker_] {
    const bool revoked = api->ncclCommRevoke(launcher, 0) == ncclSuccess;
    revoking->worked = revoked && (calling == nullptr || Returned(calling->finished));
    revoking->finished = true;
    waker->Wake();
  };
  runtime::StartThread("cohort-nccl-end", revoke).detach();
  return true;
}

// A revoked communicator can't be finalized.
void NcclCommunicator::Close() { End(/*abort=*/revoking_ != nullptr); }
void NcclCommunicator::Abort() { End(/*abort=*/true); }

void NcclCommunicator::End(bool abort) {
  if (ending_ != nullptr) return;
  ending_ = std::make_shared<Ending>();
  ending_->deadline = Clock::now() + kEndLimit;
  if (communicator_ == nullptr) {
    ending_->finished = true;
    return;
  }
  const auto end = [api = api_, communicator = std::exchange(communicator_, nullptr),
                    launcher = std::exchange(launcher_, nullptr), calling = calling_, revoking = revoking_,
                    ending = ending_, waker = waker_, abort] {
    // An abort frees what others still use in there.
    if (revoking != nullptr) (void)Returned(revoking->finished);
    if (calling != nullptr && !calling->finished.load()) {
      if (revoking == nullptr) (void)api->ncclCommRevoke(launcher, 0);
      (void)Returned(calling->finished);
    }
    if (launcher != nullptr) (void)(abort ? api->ncclCommAbort(launcher) : api->ncclCommDestroy(launcher));
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
  if (revoking_ == nullptr) return false;
  const bool finished = revoking_->finished.load();
  if (finished && revoking_->worked.load()) return true;
  if (finished || Clock::now() >= revoking_->deadline) Abort();
  return false;
}

bool NcclCommunicator::left_behind() const {
  return ending_ != nullptr && !ending_->finished.load() && Clock::now() >= ending_->deadline;
}

}  // namespace cohort::comm::nccl
