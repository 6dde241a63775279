#include "cohort/comm/nccl/nccl_lane.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "cohort/comm/nccl/launch_order.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm::nccl {
namespace {

// How often the communicator is asked for errors.
constexpr std::chrono::milliseconds kErrorInterval(1);
// With the guard off, orders are compared when a call has stood still for this long. Ranks that issue in different
// orders on streams of their own then mostly succeed.
constexpr uint64_t kOrderCheck = 500'000'000;

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// Runs on a thread of CUDA's.
void CUDART_CB WakeEngine(void* context) {
  const std::unique_ptr<std::shared_ptr<Waker>> waker(static_cast<std::shared_ptr<Waker>*>(context));
  (*waker)->Wake();
}

}  // namespace

NcclLane::NcclLane(const NcclContext* context, int index, int ordinal)
    : context_(*context),
      device_(context, index, ordinal),
      check_(context->group, context->cuda, context->pool.get(), ordinal),
      pool_(&context->group->runtime->engine(), context->group->source),
      black_box_(context->group->runtime->segment().black_box()),
      earliest_deadline_(kNever) {}

NcclLane::~NcclLane() {
  device_.AwaitStop();
  if (device_.left_behind()) check_.KeepMemory();
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
  earliest_deadline_ = std::min(earliest_deadline_, operation->deadline_ns);
  queue_.push(operation);
  ++device_.room().under_way;
}

NcclOperation* NcclLane::Pop() {
  --device_.room().under_way;
  return queue_.pop();
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
    NcclOperation* operation = Pop();
    if (operation->deadline_ns <= earliest_deadline_) {
      watch_.Clear();
    } else {
      watch_.Moved();
    }
    if (queue_.empty()) earliest_deadline_ = kNever;
    // Over: nobody need wait for it, and its event may be recorded next in a graph, where no other stream may wait.
    device_.turn().Forget(operation->event);
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
  const StallWatch::Event event = watch_.Blocked(earliest_deadline_);
  if (event != StallWatch::Event::kNone) OnStill(event);
}

// The call whose time was up first; null: none is late. What the device has done is not late, also where it is behind
// another stream's in the queue. Makes the earliest deadline exact.
const NcclOperation* NcclLane::MostOverdue() {
  const cuda::RelaxedCapture relaxed(*context_.cuda);
  const uint64_t now = CoarseNow();
  const NcclOperation* late = nullptr;
  earliest_deadline_ = kNever;
  for (const NcclOperation* each = queue_.front(); each != nullptr; each = each->next) {
    if (each->deadline_ns >= earliest_deadline_) continue;
    if (each->deadline_ns <= now) {
      if (context_.cuda->cudaEventQuery(each->event) != cudaErrorNotReady) continue;
      late = each;
    }
    earliest_deadline_ = each->deadline_ns;
  }
  return late;
}

void NcclLane::OnStill(StallWatch::Event event) {
  if (event == StallWatch::Event::kStalled) return Compare(/*expired=*/false);
  const NcclOperation* const late = MostOverdue();
  if (late == nullptr) {  // what was due has ended
    watch_.Clear();
  } else if (event == StallWatch::Event::kOverdue) {
    Compare(/*expired=*/true);
  } else {
    std::string text = runtime::DescribeCallAndSite(late->call.record) + " did not end within its timeout";
    if (late != queue_.front()) text += ", behind " + runtime::DescribeCallAndSite(queue_.front()->call.record);
    context_.group->fail(absl::DeadlineExceededError(text), -1);
  }
}

// With what the peers have called.
void NcclLane::Compare(bool expired) {
  const GroupContext& group = *context_.group;
  const NcclOperation& first = *queue_.front();
  if (expired || context_.guards_order || CoarseNow() - first.started_ns >= kOrderCheck) {
    const std::string conflict = DescribeOrderConflict(group, first.call.record);
    if (!conflict.empty()) return group.fail(absl::FailedPreconditionError(conflict), -1);
  }
  // Sends and receives, which count for each peer, are not compared.
  const NcclOperation* call = &first;
  while (call != nullptr && IsPointToPoint(call->call.request.kind)) call = call->next;
  if (call == nullptr) return;
  const runtime::RankSet members{.everyone = false, .ranks = group.members};
  group.runtime->ReportStall(group.id, call->call.record.signature.sequence, members, expired);
}

bool NcclLane::WaitsIn(uint64_t sequence) const {
  for (const NcclOperation* each = queue_.front(); each != nullptr; each = each->next) {
    if (!IsPointToPoint(each->call.request.kind) && each->call.record.signature.sequence == sequence) return true;
  }
  return false;
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
  while (!queue_.empty()) Pop()->Finish(black_box_, status);
}

}  // namespace cohort::comm::nccl
