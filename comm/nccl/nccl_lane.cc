#include "comm/nccl/nccl_lane.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "comm/nccl/launch_order.h"
#include "runtime/segment/call_names.h"

namespace cohort::comm::nccl {
namespace {

// How often the communicator is asked for errors, and peers' calls are compared when nothing moves.
constexpr std::chrono::milliseconds kErrorInterval(1);
constexpr std::chrono::milliseconds kFirstReport(50);
constexpr std::chrono::milliseconds kLongestReport(1000);
// Where the guard is off, orders are compared when a call has stood still for so long: ranks that issue in different
// orders on streams of their own then mostly get away with it.
constexpr std::chrono::milliseconds kOrderCheck(500);
// How long an operation whose time is up waits for the comparison's verdict.
constexpr std::chrono::milliseconds kVerdictTime(500);

// Runs on a thread of CUDA's.
void CUDART_CB WakeEngine(void* context) {
  const std::unique_ptr<std::shared_ptr<Waker>> waker(static_cast<std::shared_ptr<Waker>*>(context));
  (*waker)->Wake();
}

}  // namespace

NcclLane::NcclLane(const NcclContext* context, int index, int ordinal)
    : context_(*context),
      device_(context, index, ordinal),
      pool_(&context->group->runtime->engine(), context->group->source),
      black_box_(context->group->runtime->segment().black_box()) {}

NcclLane::~NcclLane() {
  if (wake_stream_ != nullptr) (void)context_.cuda->cudaStreamDestroy(wake_stream_);
}

absl::StatusOr<NcclOperation*> NcclLane::Take() {
  NcclOperation* operation = pool_.Take();
  absl::Status status = operation->Begin(context_.cuda);
  if (status.ok()) return operation;
  pool_.Discard(operation);
  return status;
}

void NcclLane::Push(NcclOperation* operation) {
  if (queue_.empty()) {
    report_interval_ = kFirstReport;
    next_report_ = operation->started + kFirstReport;
  }
  queue_.push(operation);
}

bool NcclLane::FinishDone() {
  bool moved = false;
  const cuda::RelaxedCapture relaxed(*context_.cuda);
  while (!queue_.empty()) {
    const cudaError_t state = context_.cuda->cudaEventQuery(queue_.front()->event);
    if (state == cudaErrorNotReady) break;
    if (state != cudaSuccess) {
      context_.group->fail(context_.cuda->ToStatus(state, std::string(Name(queue_.front()->call.request.kind))), -1);
      break;
    }
    NcclOperation* operation = queue_.pop();
    overdue_ = false;
    if (!queue_.empty()) {
      report_interval_ = kFirstReport;
      next_report_ = Clock::now() + kFirstReport;
    }
    // Over: nobody need wait for it, and its event may be recorded next in a graph, where no other stream may wait.
    device_.ForgetIssued(operation->event);
    operation->Finish(black_box_, absl::OkStatus());
    moved = true;
  }
  return moved;
}

void NcclLane::Watch() {
  const Clock::time_point now = Clock::now();
  if (now >= next_error_check_) {
    next_error_check_ = now + kErrorInterval;
    if (const absl::Status status = device_.Check(); !status.ok()) {
      context_.group->fail(status, -1);
      return;
    }
  }
  WatchDeadline(now);
}

void NcclLane::WatchDeadline(Clock::time_point now) {
  const GroupContext& group = *context_.group;
  const NcclOperation& first = *queue_.front();
  const runtime::CallRecord& record = first.call.record;
  if (overdue_) {
    if (now < overdue_since_ + kVerdictTime) return;
    group.fail(absl::DeadlineExceededError(runtime::DescribeCallAndSite(record) +
                                           " did not end in its time; CallOptions::timeout sets it"),
               -1);
    return;
  }
  const bool expired = now - first.started >= first.call.timeout;
  if (!expired && now < next_report_) return;
  if (expired || now - first.started >= (context_.guards_order ? kFirstReport : kOrderCheck)) {
    const std::string conflict = DescribeOrderConflict(group, record);
    if (!conflict.empty()) return group.fail(absl::FailedPreconditionError(conflict), -1);
  }
  const runtime::RankSet members{.everyone = false, .ranks = group.members};
  overdue_ = expired;
  overdue_since_ = now;
  report_interval_ = std::min(2 * report_interval_, kLongestReport);
  next_report_ = now + report_interval_;
  group.runtime->ReportStall(group.id, record.signature.sequence, members, expired);
}

void NcclLane::Arm() {
  if (queue_.empty() || queue_.front()->armed) return;
  const cuda::CudaApi& cuda = *context_.cuda;
  const cuda::RelaxedCapture relaxed(cuda);
  const cuda::DeviceScope device(cuda, device_.ordinal());
  if (wake_stream_ == nullptr && cuda.cudaStreamCreateWithFlags(&wake_stream_, cudaStreamNonBlocking) != cudaSuccess) {
    return;  // the engine looks again every 50 ms
  }
  // On a stream of its own: a host function on the caller's would hold up what follows there.
  auto waker = std::make_unique<std::shared_ptr<Waker>>(context_.pool->waker());
  if (cuda.cudaStreamWaitEvent(wake_stream_, queue_.front()->event, 0) != cudaSuccess) return;
  if (cuda.cudaLaunchHostFunc(wake_stream_, &WakeEngine, waker.get()) != cudaSuccess) return;
  (void)waker.release();
  queue_.front()->armed = true;
}

void NcclLane::FinishAll(const absl::Status& status) {
  while (!queue_.empty()) queue_.pop()->Finish(black_box_, status);
}

}  // namespace cohort::comm::nccl
