#include "cohort/comm/nccl/library/nccl_communicator.h"

#include <exception>
#include <system_error>
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

bool StartDetached(const char* name, const std::function<void()>& work) {
  try {
    runtime::StartThread(name, work).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
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
  const ncclResult_t started = api->ncclCommInitRankConfig(result->communicator_.get(), size, id, rank, &config);
  absl::Status status = api->ToStatus(started, nullptr, "making an NCCL communicator");
  if (status.ok()) return result;
  result->communicator_ = nullptr;
  return status;
}

NcclCommunicator::Made NcclCommunicator::Split(int color, int key) {
  std::unique_ptr<NcclCommunicator> result(new NcclCommunicator(api_, waker_));
  ncclConfig_t config = NonBlocking();
  result->abilities_ = abilities_;
  const ncclResult_t started =
      api_->ncclCommSplit(get(), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, result->communicator_.get(), &config);
  making_.push_back(result->communicator_);
  absl::Status status = api_->ToStatus(started, get(), "splitting an NCCL communicator");
  if (!status.ok() || color < 0) result->communicator_ = nullptr;
  if (!status.ok()) return status;
  if (color < 0) return nullptr;
  return result;
}

NcclCommunicator::Made NcclCommunicator::Shrink(std::vector<int> excluded) {
  std::unique_ptr<NcclCommunicator> result(new NcclCommunicator(api_, waker_));
  ncclConfig_t config = NonBlocking();
  constexpr int kDefault = 0;  // NCCL_SHRINK_DEFAULT: nothing is under way
  const ncclResult_t started = api_->ncclCommShrink(get(), excluded.data(), static_cast<int>(excluded.size()),
                                                    result->communicator_.get(), &config, kDefault);
  making_.push_back(result->communicator_);
  absl::Status status = api_->ToStatus(started, get(), "shrinking an NCCL communicator");
  if (status.ok()) return result;
  result->communicator_ = nullptr;
  return status;
}

absl::Status NcclCommunicator::MakeLauncher() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  launcher_ = NewHandle();
  const ncclResult_t started = api_->ncclCommSplit(get(), /*color=*/0, /*key=*/0, launcher_.get(), &config);
  making_.push_back(launcher_);
  absl::Status status = api_->ToStatus(started, get(), "making an NCCL communicator");
  if (!status.ok()) launcher_ = nullptr;
  return status;
}

absl::Status NcclCommunicator::StartCall(const std::string& doing, std::function<absl::StatusOr<ncclResult_t>()> call) {
  const auto calling = std::make_shared<Calling>();
  calling->doing = doing;
  const auto run = [calling, call = std::move(call), waker = waker_] {
    try {
      calling->result = call();
    } catch (const std::exception& error) {  // no memory
      calling->result = absl::ResourceExhaustedError(calling->doing + ": " + error.what());
    }
    calling->finished.store(true, std::memory_order_release);
    waker->Wake();
  };
  if (!StartDetached("cohort-nccl-call", run)) {
    return absl::ResourceExhaustedError(doing +
                                        ": the system gives this process no more threads (see ulimit -u and "
                                        "the cgroup's pids.max)");
  }
  calling_ = calling;
  return absl::OkStatus();
}

NcclCommunicator::~NcclCommunicator() {
  if (ending_ == nullptr) Abort();
  while (!Stopped()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

absl::StatusOr<bool> NcclCommunicator::CheckOne(ncclComm_t communicator) {
  if (communicator == nullptr) return false;  // its parent is not done with it
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
    failure_ = call->result.ok() ? api_->ToStatus(*call->result, launcher(), call->doing) : call->result.status();
  }
  if (!failure_.ok()) [[unlikely]]
    return failure_;
  absl::StatusOr<bool> idle = CheckOne(get());
  if (!idle.ok() || !*idle) return idle;
  making_.clear();
  return launcher_ == nullptr ? idle : CheckOne(Load(launcher_));
}

bool NcclCommunicator::Revoke() {
  if (ending_ != nullptr || Load(launcher_) == nullptr) return false;
  const auto revoking = std::make_shared<Revocation>();
  revoking->deadline = Clock::now() + kRevokeLimit;
  // It blocks until what is enqueued has been stopped.
  const auto revoke = [api = api_, launcher = Load(launcher_), calling = calling_, revoking, waker = waker_] {
    const ncclResult_t revoked = api->ncclCommRevoke(launcher, 0);
    const bool in_time = revoked == ncclSuccess || (revoked == ncclInProgress && FinishedInTime(*api, launcher));
    revoking->worked = in_time && (calling == nullptr || Returned(calling->finished));
    revoking->finished = true;
    waker->Wake();
  };
  if (!StartDetached("cohort-nccl-end", revoke)) return false;
  revoking_ = revoking;
  return true;
}

// A revoked communicator can't be finalized.
void NcclCommunicator::Close() { End(/*abort=*/revoking_ != nullptr); }
void NcclCommunicator::Abort() { End(/*abort=*/true); }

void NcclCommunicator::End(bool abort) {
  if (ending_ != nullptr) return;
  ending_ = std::make_shared<Ending>();
  ending_->deadline = Clock::now() + kEndLimit;
  const auto end = [api = api_, control = std::exchange(communicator_, nullptr),
                    launches = std::exchange(launcher_, nullptr), making = std::move(making_), calling = calling_,
                    revoking = revoking_, ending = ending_, waker = waker_, abort] {
    ncclComm_t const communicator = Load(control);
    ncclComm_t const launcher = Load(launches);
    if (calling != nullptr && !calling->finished.load() && revoking == nullptr) (void)api->ncclCommRevoke(launcher, 0);
    // An abort frees what others still use in there: it is left behind, then.
    if (revoking != nullptr && !Returned(revoking->finished)) return;
    if (calling != nullptr && !Returned(calling->finished)) return;
    if (launcher != nullptr) (void)(abort ? api->ncclCommAbort(launcher) : api->ncclCommDestroy(launcher));
    const auto closes_in_order = [&] {
      const ncclResult_t result = api->ncclCommFinalize(communicator);
      return (result == ncclSuccess || result == ncclInProgress) && FinishedInTime(*api, communicator);
    };
    if (communicator == nullptr) {
      // It was not made.
    } else if (!abort && closes_in_order()) {
      (void)api->ncclCommDestroy(communicator);
    } else {
      (void)api->ncclCommAbort(communicator);
    }
    ending->finished = true;
    waker->Wake();
  };
  // Left behind when NCCL never returns: it holds on to nothing of ours but what it shares.
  if (!StartDetached("cohort-nccl-end", end)) end();
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
