#include "cohort/comm/nccl/nccl_issue.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/nccl/library/launch_shape.h"
#include "cohort/comm/nccl/nccl_calls.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread of NCCL's or ours mostly takes for a launch without connections. The engine is not driven
// meanwhile: it looks at everything else between two looks at NCCL.
constexpr std::chrono::microseconds kLaunchTime(200);

}  // namespace

NcclIssue::NcclIssue(NcclDevice* device, std::span<const IssuedCall> calls, runtime::Deadline deadline)
    : device_(*device), calls_(calls), deadline_(deadline) {
  device_.context_.pool->issues(device_.ordinal_).push_back(this);
}

NcclIssue::~NcclIssue() {
  if (stage_ != Stage::kOver) std::erase(device_.context_.pool->issues(device_.ordinal_), this);
  // Something went wrong: what NCCL still has to launch may use the memory until the communicator has been stopped.
  if (exchange_ != nullptr) device_.left_.push_back(std::move(exchange_));
}

std::string_view NcclIssue::name() const { return comm::Name(calls_[0].call->request.kind); }

absl::Status NcclIssue::Run() {
  std::vector<NcclIssue*>& queue = device_.context_.pool->issues(device_.ordinal_);
  Clock::time_point patient_until{};
  while (true) {
    while (!queue.empty() && queue.front()->Advance()) queue.erase(queue.begin());
    if (stage_ == Stage::kOver) [[likely]]
      return status_;
    const Clock::time_point now = Clock::now();
    if (patient_until == Clock::time_point()) patient_until = now + kLaunchTime;
    if (now < patient_until && !device_.room().full()) {
      std::this_thread::yield();
    } else {
      COHORT_RETURN_IF_ERROR(device_.context_.drive_on(deadline_, std::string(name())));
    }
  }
}

bool NcclIssue::Advance() {
  while (stage_ != Stage::kOver) {
    const absl::StatusOr<bool> moved = Step();
    if (moved.ok() && !*moved) return false;
    if (moved.ok()) continue;
    status_ = moved.status();
    stage_ = Stage::kOver;
  }
  return true;
}

absl::StatusOr<bool> NcclIssue::Step() {
  // Its own caller, which is below us, has a better word for it.
  if (HasEnded(device_.life_)) return absl::CancelledError("the group has failed");
  if (stage_ == Stage::kBegin && device_.room().full()) [[unlikely]] {
    if (!deadline_.passed()) return false;
    return absl::DeadlineExceededError(std::string(name()) + ": not begun in the time that the call allows, since " +
                                       std::to_string(LaunchRoom::kMost) + " calls before it have not ended");
  }
  if (waiting_ || device_.settling_) {
    COHORT_ASSIGN_OR_RETURN(const bool idle, device_.communicator_->Check());
    if (!idle && deadline_.passed()) {
      return absl::DeadlineExceededError(std::string(name()) + ": not done in the time that the call allows");
    }
    if (!idle) return false;
    waiting_ = device_.settling_ = false;
  }
  const runtime::MutexLock lock(IssuerOf(device_.ordinal_));
  COHORT_ASSIGN_OR_RETURN(const ncclResult_t launched, RunStage());
  waiting_ = launched == ncclInProgress;
  COHORT_RETURN_IF_ERROR(
      device_.context_.nccl->ToStatus(launched, device_.communicator_->launcher(), std::string(name())));
  return true;
}

absl::StatusOr<ncclResult_t> NcclIssue::RunStage() {
  switch (stage_) {
    case Stage::kBegin:
      stage_ = Stage::kNative;
      COHORT_RETURN_IF_ERROR(KeepOrder());
      [[fallthrough]];
    case Stage::kNative:
      stage_ = Stage::kSpread;
      return LaunchNative();
    case Stage::kSpread:
      for (const auto& [memory, stream] : device_.temporaries_)
        (void)device_.context_.cuda->cudaFreeAsync(memory, stream);
      device_.temporaries_.clear();
      return BeginExchange();
    case Stage::kFold:
      stage_ = Stage::kEnd;
      COHORT_RETURN_IF_ERROR(exchange_->Fold());
      if (exchange_->Collects()) return Enter([exchange = exchange_] { return exchange->Collect(); });
      return ncclSuccess;
    case Stage::kEnd:
      stage_ = Stage::kSpread;
      device_.exchanged_ = device_.exchanged_ || exchange_->Collects();
      COHORT_RETURN_IF_ERROR(exchange_->End());
      exchange_.reset();
      ++exchanging_;
      return ncclSuccess;
    case Stage::kRecord:
      COHORT_RETURN_IF_ERROR(Record());
      if (launch_ == Launch::kNew) device_.known_.Add(shape_);
      stage_ = Stage::kOver;
      return ncclSuccess;
    case Stage::kOver:
      break;
  }
  return ncclInternalError;
}

absl::Status NcclIssue::KeepOrder() {
  for (const IssuedCall& each : calls_) {
    if (!each.captured) COHORT_RETURN_IF_ERROR(device_.turn().Await(static_cast<cudaStream_t>(each.call->stream)));
  }
  return absl::OkStatus();
}

template <typename Call>
absl::StatusOr<ncclResult_t> NcclIssue::Enter(Call call) {
  if (launch_ == Launch::kKnown) [[likely]]
    return call();
  COHORT_RETURN_IF_ERROR(
      device_.communicator_->StartCall(std::string(name()),
                                       [call = std::move(call), &cuda = *device_.context_.cuda,
                                        ordinal = device_.ordinal_]() -> absl::StatusOr<ncclResult_t> {
                                         const cuda::DeviceScope device(cuda, ordinal);
                                         COHORT_RETURN_IF_ERROR(device.status());
                                         return call();
                                       }));
  return ncclInProgress;
}

absl::StatusOr<ncclResult_t> NcclIssue::LaunchNative() {
  bool here_only = !device_.communicator_->has_launcher(), captured = false;
  for (const IssuedCall& each : calls_) {
    shape_ = LaunchShape(shape_, each.call->request, !device_.registrations_.empty());
    // The caller's own default stream is another one in another thread.
    here_only = here_only || each.call->stream == static_cast<void*>(cudaStreamPerThread);
    captured = captured || each.captured;  // NCCL may register it, together with the peers
  }
  if (here_only || (!captured && device_.known_.Contain(shape_))) {
    launch_ = Launch::kKnown;
  } else {
    launch_ = captured ? Launch::kNewInGraph : Launch::kNew;
  }
  const CallTarget target = device_.Target();
  if (calls_.size() == 1) [[likely]] {
    if (!device_.WhyNot(calls_[0].call->request).empty()) return ncclSuccess;
    if (launch_ == Launch::kKnown) [[likely]]
      return Enqueue(target, *calls_[0].call);
    return Enter([target, call = *calls_[0].call] { return Enqueue(target, call); });
  }
  std::vector<AcceptedCall> native;
  for (const IssuedCall& each : calls_) {
    if (device_.WhyNot(each.call->request).empty()) native.push_back(*each.call);
  }
  if (native.empty()) return ncclSuccess;
  return Enter([target, native = std::move(native)] { return EnqueueBatch(target, native); });
}

absl::StatusOr<ncclResult_t> NcclIssue::BeginExchange() {
  while (exchanging_ < calls_.size() && device_.WhyNot(calls_[exchanging_].call->request).empty()) ++exchanging_;
  if (exchanging_ == calls_.size()) {
    stage_ = Stage::kRecord;
    return ncclSuccess;
  }
  stage_ = Stage::kFold;
  const AcceptedCall& call = *calls_[exchanging_].call;
  CallTarget target = device_.Target();
  target.stream = static_cast<cudaStream_t>(call.stream);
  exchange_ = std::make_shared<NcclExchange>(target, device_.kernels_, &call.request);
  COHORT_RETURN_IF_ERROR(exchange_->Begin());
  return Enter([exchange = exchange_] { return exchange->Spread(); });
}

absl::Status NcclIssue::Record() {
  const cuda::CudaApi& cuda = *device_.context_.cuda;
  for (const IssuedCall& each : calls_) {
    const cudaError_t recorded = cuda.cudaEventRecord(each.event, static_cast<cudaStream_t>(each.call->stream));
    if (recorded != cudaSuccess) [[unlikely]]
      return cuda.ToStatus(recorded, std::string(name()));
    if (!each.captured) device_.turn().NoteIssued(each.event);
  }
  return absl::OkStatus();
}

}  // namespace cohort::comm::nccl
