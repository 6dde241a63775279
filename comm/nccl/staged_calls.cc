#include "cohort/comm/nccl/staged_calls.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/nccl/library/left_behind.h"
#include "cohort/comm/provider/prepared_call.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::nccl {
namespace {

// A ticket that no record has: the chunks of a call have no records of their own.
constexpr uint64_t kNoTicket = 0;

// How long the end waits for copies on the device. It holds up the engine.
constexpr std::chrono::milliseconds kCopyLimit(500);

// The same blocks without gaps; returns their length.
int64_t Pack(const std::vector<int64_t>& from, std::vector<int64_t>* counts, std::vector<int64_t>* places) {
  *counts = from;
  places->clear();
  int64_t end = 0;
  for (const int64_t count : from) {
    places->push_back(end);
    end += count;
  }
  return end;
}

// When the provider of host memory must have ended a call whose time is over at `deadline`: it knows who is missing,
// and waits half a second for what the others know.
runtime::Deadline AfterVerdict(runtime::Deadline deadline) {
  constexpr std::chrono::seconds kVerdictTime(2);
  return deadline.left() > std::chrono::hours(24 * 365) ? runtime::Deadline::Infinite()
                                                        : runtime::Deadline(deadline.time() + kVerdictTime);
}

}  // namespace

// How a call is cut: chunk c is elements [c * length, (c + 1) * length) of every block.
struct StagedCalls::Cut {
  const CollectiveRequest* request;
  int64_t element;  // bytes
  BufferBlocks blocks;
  int64_t length;  // elements of a block in a chunk
  int64_t chunks;
  cudaStream_t stream;

  int64_t begin(int64_t chunk) const { return chunk * length; }
  int64_t count(int64_t chunk) const { return std::min(length, request->count - begin(chunk)); }
  // The call on a chunk in host memory.
  CollectiveRequest RequestOf(int64_t chunk, const Stage& stage) const {
    CollectiveRequest part = *request;
    part.memory = MemoryKind::kHost;
    part.count = count(chunk);
    part.in_place = false;
    part.in = blocks.in > 0 ? stage.in : nullptr;
    part.out = blocks.out > 0 ? stage.out : nullptr;
    if (part.kind == CollectiveKind::kBroadcast) part.in = part.out = stage.in;
    return part;
  }
};

StagedCalls::StagedCalls(const GroupContext* group, const cuda::CudaApi* cuda, int ordinal,
                         const MakeHostProvider& make, Drive drive)
    : group_(*group),
      cuda_(*cuda),
      ordinal_(ordinal),
      drive_(std::move(drive)),
      collectives_(make(/*messages=*/false)),
      messages_(make(/*messages=*/true)) {}

StagedCalls::~StagedCalls() {
  collectives_.reset();
  messages_.reset();
  const cuda::DeviceScope device(cuda_, ordinal_);
  const bool copied = Copied();
  // CUDA lets go of a stream and of events when what is on them is done.
  if (stream_ != nullptr) (void)cuda_.cudaStreamDestroy(stream_);
  if (begun_ != nullptr) (void)cuda_.cudaEventDestroy(begun_);
  for (Stage& stage : stages_) {
    for (std::byte* memory : {stage.in, stage.out}) {
      if (copied) (void)cuda_.cudaFreeHost(memory);
      if (!copied && memory != nullptr) LeaveBehind({memory});
    }
    if (stage.copied_in != nullptr) (void)cuda_.cudaEventDestroy(stage.copied_in);
    if (stage.copied_out != nullptr) (void)cuda_.cudaEventDestroy(stage.copied_out);
  }
}

// Whether the copies, of two chunks at most, are done, or soon are. They are not where the caller's stream stands
// still, which may be why a call has failed.
bool StagedCalls::Copied() {
  if (stream_ == nullptr) return true;
  const cuda::RelaxedCapture relaxed(cuda_);
  if (begun_ == nullptr || cuda_.cudaEventRecord(begun_, stream_) != cudaSuccess) return false;
  const runtime::Deadline deadline = runtime::Deadline::After(kCopyLimit);
  cudaError_t state = cudaErrorNotReady;
  while ((state = cuda_.cudaEventQuery(begun_)) == cudaErrorNotReady && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return state == cudaSuccess;
}

absl::Status StagedCalls::Prepare() {
  if (stream_ != nullptr) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
  COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming)));
  for (Stage& stage : stages_) {
    COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaEventCreateWithFlags(&stage.copied_in, cudaEventDisableTiming)));
    COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaEventCreateWithFlags(&stage.copied_out, cudaEventDisableTiming)));
  }
  return absl::OkStatus();
}

absl::Status StagedCalls::Grow(Stage& stage, int64_t bytes, runtime::Deadline deadline) {
  if (stage.bytes >= bytes) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(Await(stage.copied_out, deadline));
  for (std::byte** memory : {&stage.in, &stage.out}) {
    (void)cuda_.cudaFreeHost(std::exchange(*memory, nullptr));
    stage.bytes = 0;
    COHORT_RETURN_IF_ERROR(
        Cuda(cuda_.cudaHostAlloc(reinterpret_cast<void**>(memory), static_cast<size_t>(bytes), cudaHostAllocDefault)));
  }
  stage.bytes = bytes;
  return absl::OkStatus();
}

absl::Status StagedCalls::FollowCall(cudaStream_t stream) {
  COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaEventRecord(begun_, stream)));
  return Cuda(cuda_.cudaStreamWaitEvent(stream_, begun_, 0));
}

absl::Status StagedCalls::Await(cudaEvent_t event, runtime::Deadline deadline) {
  cudaError_t state = cudaErrorNotReady;
  const auto ready = [&] {
    const cuda::RelaxedCapture relaxed(cuda_);
    state = cuda_.cudaEventQuery(event);
    return state != cudaErrorNotReady;
  };
  while (!ready()) {
    // No wake-up is worth its cost for copies this short.
    const auto soon = runtime::Deadline::After(std::chrono::microseconds(20));
    const absl::Status status = drive_([] { return false; }, Earlier(soon, deadline));
    if (!status.ok() && !absl::IsDeadlineExceeded(status)) return status;
    if (deadline.passed())
      return absl::DeadlineExceededError("the device did not copy in the time that the call allows");
  }
  return Cuda(state);
}

absl::Status StagedCalls::CopyIn(const Cut& cut, int64_t chunk, Stage& stage) {
  // Its host memory is free again once the copy of the chunk before last is back.
  COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaStreamWaitEvent(stream_, stage.copied_out, 0)));
  const auto width = static_cast<size_t>(cut.count(chunk) * cut.element);
  if (cut.blocks.in > 0 && width > 0) {
    const auto* from = static_cast<const std::byte*>(cut.request->in) + cut.begin(chunk) * cut.element;
    COHORT_RETURN_IF_ERROR(
        Cuda(cuda_.cudaMemcpy2DAsync(stage.in, width, from, static_cast<size_t>(cut.request->count * cut.element),
                                     width, static_cast<size_t>(cut.blocks.in), cudaMemcpyDeviceToHost, stream_)));
  }
  return Cuda(cuda_.cudaEventRecord(stage.copied_in, stream_));
}

absl::Status StagedCalls::RunOnHost(const AcceptedCall& call, const CollectiveRequest& request, int64_t chunk,
                                    runtime::Deadline deadline) {
  Provider& provider = IsPointToPoint(request.kind) ? *messages_ : *collectives_;
  const absl::StatusOr<ServicePlan> service = provider.Choose(request, "");
  if (!service.ok()) return service.status();
  PreparedCall part;
  part.request = request;
  if (request.blocks != nullptr) part.blocks = packed_;
  part.timeout = deadline.left();
  part.service = *service;
  part.record = call.record;
  runtime::CallSignature& signature = part.record.signature;
  signature.algorithm = service->algorithm;
  signature.tuning = service->tuning + static_cast<uint64_t>(chunk);
  // A send and a receive have neither algorithm nor table, and their peers find them by what they carry.
  if (!IsPointToPoint(request.kind)) {
    part.record.wire_signature = runtime::ChainSignature(call.record.wire_signature, runtime::HashSignature(signature));
  }
  part.ticket = kNoTicket;
  provider.Start(part, request.in, request.out);
  const runtime::Work work = provider.Run(part);
  COHORT_RETURN_IF_ERROR(drive_([&] { return work.Done(); }, AfterVerdict(deadline)));
  return work.status();
}

absl::Status StagedCalls::CopyOut(const Cut& cut, int64_t chunk, Stage& stage) {
  const auto width = static_cast<size_t>(cut.count(chunk) * cut.element);
  const bool broadcast = cut.request->kind == CollectiveKind::kBroadcast;
  if (cut.blocks.out > 0 && width > 0) {
    auto* to = static_cast<std::byte*>(cut.request->out) + cut.begin(chunk) * cut.element;
    COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaMemcpy2DAsync(
        to, static_cast<size_t>(cut.request->count * cut.element), broadcast ? stage.in : stage.out, width, width,
        static_cast<size_t>(cut.blocks.out), cudaMemcpyHostToDevice, stream_)));
  }
  return Cuda(cuda_.cudaEventRecord(stage.copied_out, stream_));
}

absl::Status StagedCalls::Run(const AcceptedCall& call) {
  const runtime::Deadline deadline = runtime::Deadline::After(call.timeout);
  const CollectiveRequest& request = call.request;
  COHORT_RETURN_IF_ERROR(Prepare());
  if (request.blocks != nullptr) return RunUnequal(call, deadline);
  Cut cut;
  cut.request = &request;
  cut.element = static_cast<int64_t>(SizeOf(request.dtype));
  cut.blocks = BlocksOf(request.kind, request.root == group_.rank, group_.size);
  cut.stream = static_cast<cudaStream_t>(call.stream);
  // Equal on all members, root or not.
  const BufferBlocks most = BlocksOf(request.kind, /*is_root=*/true, group_.size);
  const int64_t blocks = std::max({most.in, most.out, 1});
  cut.length = std::max<int64_t>(1, kChunkBytes / (blocks * cut.element));
  cut.length = std::min(cut.length, std::max<int64_t>(request.count, 1));
  cut.chunks = std::max<int64_t>(1, (request.count + cut.length - 1) / cut.length);
  for (Stage& stage : stages_) COHORT_RETURN_IF_ERROR(Grow(stage, cut.length * blocks * cut.element, deadline));
  COHORT_RETURN_IF_ERROR(FollowCall(cut.stream));
  COHORT_RETURN_IF_ERROR(CopyIn(cut, 0, stages_[0]));
  for (int64_t chunk = 0; chunk < cut.chunks; ++chunk) {
    Stage& stage = stages_[static_cast<size_t>(chunk % 2)];
    if (chunk + 1 < cut.chunks)
      COHORT_RETURN_IF_ERROR(CopyIn(cut, chunk + 1, stages_[static_cast<size_t>(~chunk & 1)]));
    COHORT_RETURN_IF_ERROR(Await(stage.copied_in, deadline));
    COHORT_RETURN_IF_ERROR(RunOnHost(call, cut.RequestOf(chunk, stage), chunk, deadline));
    COHORT_RETURN_IF_ERROR(CopyOut(cut, chunk, stage));
  }
  // The caller's next work on the stream finds the result, and the next call finds the stages free.
  return Cuda(cuda_.cudaStreamWaitEvent(cut.stream, stages_[static_cast<size_t>((cut.chunks - 1) % 2)].copied_out, 0));
}

absl::Status StagedCalls::RunUnequal(const AcceptedCall& call, runtime::Deadline deadline) {
  const BlockTable& blocks = *call.request.blocks;
  const auto element = static_cast<int64_t>(SizeOf(call.request.dtype));
  if (packed_ == nullptr) packed_ = std::make_shared<BlockTable>();
  const int64_t in_bytes = Pack(blocks.in_counts, &packed_->in_counts, &packed_->in_places) * element;
  const int64_t out_bytes = Pack(blocks.out_counts, &packed_->out_counts, &packed_->out_places) * element;
  Stage& stage = stages_[0];
  COHORT_RETURN_IF_ERROR(Grow(stage, std::max({in_bytes, out_bytes, int64_t{1}}), deadline));
  const auto stream = static_cast<cudaStream_t>(call.stream);
  COHORT_RETURN_IF_ERROR(FollowCall(stream));
  COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaStreamWaitEvent(stream_, stage.copied_out, 0)));
  for (size_t i = 0; i < blocks.in_counts.size(); ++i) {
    const auto* from = static_cast<const std::byte*>(call.request.in) + blocks.in_places[i] * element;
    COHORT_RETURN_IF_ERROR(
        Copy(stage.in + packed_->in_places[i] * element, from, blocks.in_counts[i] * element, cudaMemcpyDeviceToHost));
  }
  COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaEventRecord(stage.copied_in, stream_)));
  COHORT_RETURN_IF_ERROR(Await(stage.copied_in, deadline));
  CollectiveRequest request = call.request;
  request.memory = MemoryKind::kHost;
  request.in_place = false;
  request.in = stage.in;
  request.out = stage.out;
  request.blocks = packed_.get();
  COHORT_RETURN_IF_ERROR(RunOnHost(call, request, /*chunk=*/0, deadline));
  for (size_t i = 0; i < blocks.out_counts.size(); ++i) {
    auto* to = static_cast<std::byte*>(call.request.out) + blocks.out_places[i] * element;
    COHORT_RETURN_IF_ERROR(
        Copy(to, stage.out + packed_->out_places[i] * element, blocks.out_counts[i] * element, cudaMemcpyHostToDevice));
  }
  COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaEventRecord(stage.copied_out, stream_)));
  return Cuda(cuda_.cudaStreamWaitEvent(stream, stage.copied_out, 0));
}

absl::Status StagedCalls::Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return absl::OkStatus();
  return Cuda(cuda_.cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_));
}

bool StagedCalls::Poll() {
  const bool moved = collectives_->Poll();
  return messages_->Poll() || moved;
}

bool StagedCalls::Active() const { return collectives_->Active() || messages_->Active(); }

void StagedCalls::Fail(const absl::Status& status) {
  collectives_->Fail(status);
  messages_->Fail(status);
}

}  // namespace cohort::comm::nccl
