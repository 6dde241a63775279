#include "cohort/comm/nccl/nccl_provider.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/cuda/device.h"
#include "cohort/comm/nccl/launch_order.h"
#include "cohort/comm/nccl/nccl_lane.h"
#include "cohort/comm/nccl/staging.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/black_box.h"

namespace cohort::comm {
namespace nccl {

// CallOptions::algorithm that sends a call through host memory.
constexpr char kStagedName[] = "staged";
// ServicePlan::pieces: who serves a call. It is local to a rank, but all decide alike.
constexpr int32_t kByNccl = 1;
constexpr int32_t kByHost = 2;
constexpr uint64_t kHostTag = 0x686f7374'00000001u;

class NcclProvider final : public Provider {
 public:
  NcclProvider(const GroupContext* group, const NcclApi* nccl, const cuda::CudaApi* cuda, int devices, std::string why,
               const NcclOptions& options);
  ~NcclProvider() override;

  std::string_view name() const override { return "nccl"; }
  absl::StatusOr<ServicePlan> Choose(const CollectiveRequest& request, const std::string& forced_algorithm) override;
  runtime::Work Launch(const AcceptedCall& call) override;
  void BatchBegin() override { batching_ = true; }
  void BatchEnd() override;
  bool Poll() override;
  bool Active() const override;
  void Arm() override;
  void Fail(const absl::Status& status) override;
  const runtime::CallRecord* Pending() const override;
  bool WaitsIn(uint64_t sequence) const override {
    const AcceptedCall* const staged = staging_.call();
    if (staged != nullptr && !IsPointToPoint(staged->request.kind) && staged->record.signature.sequence == sequence) {
      return true;
    }
    return std::any_of(lanes_.begin(), lanes_.end(), [=](const auto& lane) { return lane->WaitsIn(sequence); });
  }
  std::string Explain(const CollectiveRequest& request) override;
  void OnSplit(int color, int key, uint64_t child) override;
  absl::Status Register(const Buffer& buffer, runtime::Deadline deadline) override;

 private:
  absl::Status CheckDevice(int ordinal, std::string_view doing) const;
  NcclLane& LaneOf(int ordinal);
  int IndexOf(int ordinal) const;
  // The call is on its stream, or it is left to BatchEnd (*later).
  absl::Status StartOn(NcclLane& lane, NcclOperation* operation, bool* later);
  absl::Status StartBatch(NcclLane& lane, std::span<NcclOperation* const> operations);
  // The call could not be started. True: it will end when what NCCL holds has been stopped.
  bool FailStart(NcclOperation* operation, const absl::Status& status);
  absl::Status StartStaged(NcclLane& lane, const AcceptedCall& call);
  // Whether the call goes through host memory where nothing forces it, as far as that is agreed on.
  bool KnownToBeStaged(int index, const CollectiveRequest& request) const;
  absl::Status CheckCapture(NcclLane& lane, const AcceptedCall& call) const;
  absl::Status Drive(const std::function<bool()>& done, runtime::Deadline deadline, const std::string& doing);
  absl::Status DriveOn(runtime::Deadline deadline, const std::string& doing);
  runtime::Work Refuse(const AcceptedCall& call, const absl::Status& status);
  bool Stopped();
  // The status with which the works of a lane end. If an abort hangs, the agent is asked to kill this process.
  absl::Status LastWords(NcclLane& lane);

  const GroupContext* const group_;
  const int devices_;  // that CUDA shows this process
  NcclContext context_;
  std::vector<std::unique_ptr<NcclLane>> lanes_;  // in the order of first use
  Staging staging_;
  bool batching_ = false;
  std::vector<std::pair<NcclLane*, NcclOperation*>> batch_;
  absl::Status status_;
  std::atomic<bool> failed_{false};  // status_ is not OK, for other threads
  bool asked_to_be_killed_ = false;
  bool ended_ = false;  // after status_: nothing runs any more, and all works have ended
};

namespace {

bool Capturing(const cuda::CudaApi& cuda, void* stream) {
  if (stream == nullptr) return false;  // the default stream can't be captured
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cuda.cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

NcclProvider::NcclProvider(const GroupContext* group, const NcclApi* nccl, const cuda::CudaApi* cuda, int devices,
                           std::string why, const NcclOptions& options)
    : group_(group),
      devices_(devices),
      staging_(group, cuda, options.make_host_provider,
               [this](const std::function<bool()>& done, runtime::Deadline deadline) {
                 return Drive(done, deadline, "staging in host memory");
               }) {
  context_.group = group;
  context_.nccl = nccl;
  context_.cuda = cuda;
  context_.why = std::move(why);
  context_.settings = options.settings;
  context_.guards_order = GuardsOrder(options.settings, nccl == nullptr ? 0 : nccl->version);
  context_.pool = NcclPool::Of(*group->runtime);
  context_.drive = [this](const std::function<bool()>& done, runtime::Deadline deadline, const std::string& doing) {
    return Drive(done, deadline, doing);
  };
  context_.drive_on = [this](runtime::Deadline deadline, const std::string& doing) { return DriveOn(deadline, doing); };
}

NcclProvider::~NcclProvider() {
  BatchEnd();
  if (std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return !lane->empty(); })) {
    Fail(absl::CancelledError("the communicator was destroyed"));
    while (!Stopped()) std::this_thread::sleep_for(std::chrono::microseconds(200));  // bounded
    for (const auto& lane : lanes_) lane->FinishAll(LastWords(*lane));
  }
  staging_.Clear();
  lanes_.clear();
}

// The devices are numbered in the order of their first use in the group, in which all members agree. (CUDA's numbers
// may differ: rank r may use device r.)
int NcclProvider::IndexOf(int ordinal) const {
  const auto found =
      std::find_if(lanes_.begin(), lanes_.end(), [=](const auto& lane) { return lane->device().ordinal() == ordinal; });
  return static_cast<int>(found - lanes_.begin());
}

absl::Status NcclProvider::CheckDevice(int ordinal, std::string_view doing) const {
  if (ordinal >= 0 && ordinal < devices_) [[likely]]
    return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(doing) + ": the buffer is said to lie on CUDA device " +
                                    std::to_string(ordinal) + ", but this process sees " + std::to_string(devices_) +
                                    ", which CUDA numbers from 0 on: pass the number that cudaGetDevice gave where the "
                                    "memory was allocated, and see CUDA_VISIBLE_DEVICES");
}

NcclLane& NcclProvider::LaneOf(int ordinal) {
  const auto index = static_cast<size_t>(IndexOf(ordinal));
  if (index < lanes_.size()) [[likely]]
    return *lanes_[index];
  lanes_.push_back(std::make_unique<NcclLane>(&context_, static_cast<int>(lanes_.size()), ordinal));
  return *lanes_.back();
}

absl::StatusOr<ServicePlan> NcclProvider::Choose(const CollectiveRequest& request,
                                                 const std::string& forced_algorithm) {
  if (!forced_algorithm.empty() && forced_algorithm != kStagedName) [[unlikely]] {
    return absl::InvalidArgumentError("algorithm '" + forced_algorithm +
                                      "' can't be forced for CUDA memory: NCCL chooses (see NCCL_ALGO); 'staged' goes "
                                      "through host memory");
  }
  // Said before the call counts: it is this rank's alone, and the group goes on.
  COHORT_RETURN_IF_ERROR(CheckDevice(request.device, Name(request.kind)));
  const bool by_host = !forced_algorithm.empty();
  if (by_host && !staging_.possible()) {
    return absl::UnimplementedError(std::string(Name(request.kind)) +
                                    " can't be forced to be staged: copy to host memory first");
  }
  const int index = IndexOf(request.device);
  if (staging_.call() != nullptr && (by_host || KnownToBeStaged(index, request))) [[unlikely]]
    return Staging::Nested(request.kind);
  if (std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->check().running(); })) [[unlikely]]
    return DeviceCheck::Nested(request.kind);
  if (group_->checks.nan) [[unlikely]]
    COHORT_RETURN_IF_ERROR(DeviceCheck::CheckPossible(request, group_->size, *context_.cuda, *context_.pool));
  ServicePlan plan;
  plan.pieces = by_host ? kByHost : kByNccl;
  plan.tuning = by_host ? kHostTag + static_cast<uint64_t>(index) : DeviceTag(index);
  return plan;
}

bool NcclProvider::KnownToBeStaged(int index, const CollectiveRequest& request) const {
  const auto place = static_cast<size_t>(index);
  return place < lanes_.size() && WasPrepared(lanes_[place]->device().life()) &&
         !lanes_[place]->device().WhyStaged(request).empty();
}

std::string NcclProvider::Explain(const CollectiveRequest& request) {
  if (group_->size == 1) return "a copy on the device: the group has one rank";
  const NcclDevice* device = nullptr;
  for (const auto& lane : lanes_) {
    if (lane->device().ordinal() == request.device && WasPrepared(lane->device().life())) device = &lane->device();
  }
  if (device != nullptr) {
    if (const std::string why = device->WhyStaged(request); !why.empty()) return "through host memory: " + why;
  }
  if (context_.nccl == nullptr) return "through host memory: " + context_.why;
  if (const std::string why = device == nullptr ? WhyNotNccl(request, {}) : device->WhyNot(request); !why.empty()) {
    return (device == nullptr ? "by kernels, or through host memory where a rank has none: "
                              : "exchanged by NCCL and folded by kernels: ") +
           why;
  }
  return "NCCL " + VersionText(context_.nccl->version) + " (" + context_.nccl->path + "), which chooses";
}

runtime::Work NcclProvider::Refuse(const AcceptedCall& call, const absl::Status& status) {
  group_->runtime->segment().black_box().Finish(call.ticket, runtime::CallState::kFailed);
  return runtime::Work::Finished(status);
}

runtime::Work NcclProvider::Launch(const AcceptedCall& call) {
  if (!status_.ok()) return Refuse(call, status_);
  const cuda::DeviceScope device(*context_.cuda, call.request.device);
  NcclLane& lane = LaneOf(call.request.device);
  const absl::StatusOr<NcclOperation*> taken =
      device.status().ok() ? lane.Take() : absl::StatusOr<NcclOperation*>(device.status());
  if (!taken.ok()) {
    group_->fail(taken.status(), -1);
    return Refuse(call, taken.status());
  }
  NcclOperation* operation = *taken;
  operation->call = call;  // `call` is the caller's and may change while Start drives the engine
  operation->started_ns = CoarseNow();
  operation->deadline_ns = DeadlineAfter(operation->started_ns, call.timeout);
  runtime::Work work = runtime::Work::Adopt(operation);
  bool later = false;
  const absl::Status started = StartOn(lane, operation, &later);
  if (!started.ok()) {
    if (!FailStart(operation, started)) return work;
  } else if (operation->captured) {
    operation->Finish(group_->runtime->segment().black_box(), absl::OkStatus());
    return work;
  }
  if (later) {
    batch_.emplace_back(&lane, operation);
  } else {
    lane.Push(operation);
  }
  return work;
}

bool NcclProvider::FailStart(NcclOperation* operation, const absl::Status& status) {
  if (group_->size == 1 && status_.ok()) {
    operation->Finish(group_->runtime->segment().black_box(), status);  // nobody waits for it
    return false;
  }
  // The others wait for this rank: the call is theirs, too.
  if (status_.ok()) group_->fail(status, -1);
  Fail(status);
  // NCCL may hold the buffers until it is aborted. Poll frees what was kept for it, and ends the operation.
  if (!ended_) return true;
  operation->Finish(group_->runtime->segment().black_box(), status_);
  return false;
}

absl::Status NcclProvider::StartOn(NcclLane& lane, NcclOperation* operation, bool* later) {
  const AcceptedCall& call = operation->call;
  const runtime::Deadline deadline = runtime::Deadline::After(call.timeout);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const bool by_host = call.service.pieces == kByHost && group_->size > 1;
  operation->captured = Capturing(*context_.cuda, call.stream);
  if (operation->captured && group_->size > 1) COHORT_RETURN_IF_ERROR(CheckCapture(lane, call));
  if (lane.device().life() == DeviceLife::kPreparing) [[unlikely]] {
    return absl::FailedPreconditionError(
        "the group's first call on this device still makes its communicator, and this one comes from inside it: wait "
        "for the first call before anything that calls back makes others");
  }
  if (!by_host && !WasPrepared(lane.device().life())) [[unlikely]]
    COHORT_RETURN_IF_ERROR(lane.device().Prepare(deadline));
  if (group_->checks.nan) [[unlikely]]
    COHORT_RETURN_IF_ERROR(lane.check().Run(call, operation->captured, context_.drive_on, deadline));
  if (group_->size == 1) {
    COHORT_RETURN_IF_ERROR(lane.device().RunAlone(call.request, stream, operation->captured));
  } else if (by_host || !lane.device().WhyStaged(call.request).empty()) {
    COHORT_RETURN_IF_ERROR(StartStaged(lane, call));
  } else if (batching_ && !operation->captured) {
    *later = true;
    return absl::OkStatus();
  } else {
    const IssuedCall calls[] = {{&call, operation->event, operation->captured}};
    return lane.device().Enqueue(calls, deadline);
  }
  return context_.cuda->ToStatus(context_.cuda->cudaEventRecord(operation->event, stream),
                                 std::string(Name(call.request.kind)));
}

absl::Status NcclProvider::CheckCapture(NcclLane& lane, const AcceptedCall& call) const {
  const NcclDevice& device = lane.device();
  if (call.service.pieces == kByHost || (WasPrepared(device.life()) && !device.WhyStaged(call.request).empty())) {
    return absl::UnimplementedError(std::string(Name(call.request.kind)) +
                                    " goes through host memory and can't be captured into a CUDA graph");
  }
  if (WasPrepared(device.life()) && device.Connected(call.request)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the group's first call on this device, and its first reduction that NCCL does not compute, can't be captured "
      "into a CUDA graph: communicator and connections are made in it; make the same call before the capture");
}

void NcclProvider::BatchEnd() {
  batching_ = false;
  // Starting may drive the engine, whose callbacks may make calls, batches and lanes of this group.
  const auto batch = std::exchange(batch_, {});
  for (size_t i = 0; i < lanes_.size(); ++i) {
    NcclLane* const lane = lanes_[i].get();
    std::vector<NcclOperation*> operations;
    for (const auto& [of, operation] : batch) {
      if (of == lane) operations.push_back(operation);
    }
    if (operations.empty()) continue;
    const absl::Status started = status_.ok() ? StartBatch(*lane, operations) : status_;
    for (NcclOperation* operation : operations) {
      if (started.ok() || FailStart(operation, started)) lane->Push(operation);
    }
  }
}

absl::Status NcclProvider::StartBatch(NcclLane& lane, std::span<NcclOperation* const> operations) {
  const cuda::DeviceScope device(*context_.cuda, lane.device().ordinal());
  COHORT_RETURN_IF_ERROR(device.status());
  std::vector<IssuedCall> calls;
  for (const NcclOperation* operation : operations) calls.push_back({&operation->call, operation->event, false});
  return lane.device().Enqueue(calls, runtime::Deadline::After(calls[0].call->timeout));
}

absl::Status NcclProvider::StartStaged(NcclLane& lane, const AcceptedCall& call) {
  if (!staging_.possible() || batching_) {
    return absl::UnimplementedError(std::string(Name(call.request.kind)) + (batching_ ? " in a batch" : "") +
                                    " does not go through host memory; " + lane.device().WhyStaged(call.request));
  }
  // Choose refuses one inside another where it can know; not where what the members have was only agreed on since.
  const int ordinal = lane.device().ordinal();
  return staging_.Run(static_cast<size_t>(IndexOf(ordinal)), ordinal, call);
}

// Lets other operations of the process move while this one waits: peers may need them to come to their own call.
absl::Status NcclProvider::Drive(const std::function<bool()>& done, runtime::Deadline deadline,
                                 const std::string& doing) {
  const bool ended = group_->drive([&] { return failed_.load(std::memory_order_acquire) || done(); }, deadline);
  COHORT_RETURN_IF_ERROR(status_);
  return ended ? absl::OkStatus() : absl::DeadlineExceededError(doing + ": not done in the time that the call allows");
}

absl::Status NcclProvider::DriveOn(runtime::Deadline deadline, const std::string& doing) {
  constexpr std::chrono::microseconds kMoment(50);
  const absl::Status status = Drive([] { return false; }, Earlier(deadline, runtime::Deadline::After(kMoment)), doing);
  return absl::IsDeadlineExceeded(status) && status_.ok() && !deadline.passed() ? absl::OkStatus() : status;
}

bool NcclProvider::Active() const {
  const auto busy = [](const auto& lane) { return !lane->empty(); };
  const bool stopping = !status_.ok() && !ended_;
  return stopping || std::any_of(lanes_.begin(), lanes_.end(), busy) || staging_.Active();
}

const runtime::CallRecord* NcclProvider::Pending() const {
  if (staging_.call() != nullptr) return &staging_.call()->record;
  const NcclOperation* oldest = nullptr;
  for (const auto& lane : lanes_) {
    if (!lane->empty() && (oldest == nullptr || lane->first()->started_ns < oldest->started_ns)) oldest = lane->first();
  }
  return oldest == nullptr ? nullptr : &oldest->call.record;
}

bool NcclProvider::Poll() {
  if (!status_.ok()) {
    if (ended_ || !Stopped()) return false;
    ended_ = true;
    for (const auto& lane : lanes_) {
      lane->device().FreeKept();
      lane->FinishAll(LastWords(*lane));
    }
    return true;
  }
  bool moved = false;
  for (size_t i = 0; i < lanes_.size() && status_.ok(); ++i) {
    moved = staging_.Poll(i) || moved;
    if (lanes_[i]->empty()) continue;
    if (lanes_[i]->FinishDone()) {
      moved = true;
    } else if (status_.ok()) {
      lanes_[i]->Watch();
    }
  }
  return moved || !status_.ok();
}

void NcclProvider::Arm() {
  if (!status_.ok()) return;
  for (const auto& lane : lanes_) lane->Arm();
}

void NcclProvider::Fail(const absl::Status& status) {
  if (!status_.ok()) return;
  status_ = status;
  failed_.store(true, std::memory_order_release);
  // Works end when the abort has, in Poll: only then is their memory no longer used.
  for (const auto& lane : lanes_) {
    lane->device().turn().Forget();
    lane->device().Stop();
  }
  staging_.Fail(status);
}

bool NcclProvider::Stopped() {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->device().Stopped(); });
}

absl::Status NcclProvider::Register(const Buffer& buffer, runtime::Deadline deadline) {
  COHORT_RETURN_IF_ERROR(status_);
  COHORT_RETURN_IF_ERROR(CheckDevice(buffer.device, "register device memory"));
  const cuda::DeviceScope scope(*context_.cuda, buffer.device);
  COHORT_RETURN_IF_ERROR(scope.status());
  NcclDevice& device = LaneOf(buffer.device).device();
  absl::Status status = WasPrepared(device.life()) ? absl::OkStatus() : device.Prepare(deadline);
  const size_t bytes = static_cast<size_t>(buffer.count) * SizeOf(buffer.dtype);
  if (status.ok()) status = device.Register(buffer.data, bytes, deadline);
  if (!status.ok() && status_.ok()) group_->fail(status, -1);  // the others wait for this rank
  return status;
}

absl::Status NcclProvider::LastWords(NcclLane& lane) {
  if (!lane.device().left_behind()) return status_;
  const std::string hangs = "NCCL's abort did not end within " + std::to_string(NcclCommunicator::kEndLimit.count()) +
                            " s, so the device may still use the buffers";
  if (!asked_to_be_killed_) {
    asked_to_be_killed_ = group_->runtime->AskToBeKilled(hangs + ", after: " + std::string(status_.message()));
  }
  return absl::Status(status_.code(),
                      std::string(status_.message()) + "; " + hangs +
                          (asked_to_be_killed_ ? ": this process is killed by its agent" : ": end this process"));
}

void NcclProvider::OnSplit(int color, int key, uint64_t child) {
  const runtime::Deadline deadline = runtime::Deadline::After(CallOptions().timeout);  // as of all that Split does
  const size_t lanes = lanes_.size();                                                  // equal on all members
  for (size_t i = 0; i < lanes && status_.ok(); ++i) {
    const absl::Status split = lanes_[i]->device().Split(color, key, child, deadline);
    if (!split.ok() && status_.ok()) group_->fail(split, -1);
  }
}

}  // namespace nccl

absl::StatusOr<std::unique_ptr<Provider>> MakeNcclProvider(const GroupContext* group, const NcclOptions& options) {
  COHORT_ASSIGN_OR_RETURN(const cuda::CudaApi* cuda_api, cuda::LoadCuda(options.cuda_library));
  const absl::StatusOr<const nccl::NcclApi*> nccl_api = options.forbidden.empty()
                                                            ? nccl::LoadNccl(options.nccl_library)
                                                            : absl::FailedPreconditionError(options.forbidden);
  if (!nccl_api.ok() && options.make_host_provider == nullptr) return nccl_api.status();
  COHORT_ASSIGN_OR_RETURN(const int devices, cuda::DeviceCount(options.cuda_library));
  return std::make_unique<nccl::NcclProvider>(group, nccl_api.ok() ? *nccl_api : nullptr, cuda_api, devices,
                                              nccl_api.ok() ? "" : std::string(nccl_api.status().message()), options);
}

}  // namespace cohort::comm
