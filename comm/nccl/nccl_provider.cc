#include "comm/nccl/nccl_provider.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "comm/cuda/cuda_api.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_calls.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_operation.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status_macros.h"
#include "runtime/segment/black_box.h"

namespace cohort::comm {
namespace nccl {

using Clock = std::chrono::steady_clock;

namespace {

// How often the communicator is asked for errors, and peers' calls are compared when nothing moves.
constexpr std::chrono::milliseconds kErrorInterval(1);
constexpr std::chrono::milliseconds kFirstReport(50);
constexpr std::chrono::milliseconds kLongestReport(1000);
// How long an operation whose time is up waits for the comparison's verdict.
constexpr std::chrono::milliseconds kVerdictTime(500);

// NCCL must not be called by two threads at once for one device, whatever the communicators.
runtime::Mutex& Issuer() {
  static runtime::Mutex mutex;
  return mutex;
}

}  // namespace

class NcclProvider final : public Provider {
 public:
  NcclProvider(const GroupContext* group, const NcclApi* nccl, const cuda::CudaApi* cuda)
      : group_(group),
        nccl_(nccl),
        cuda_(cuda),
        pool_(std::make_shared<NcclOperationPool>(cuda, &group->runtime->engine())) {}
  ~NcclProvider() override;

  std::string_view name() const override { return "nccl"; }
  absl::StatusOr<ServicePlan> Choose(const CollectiveRequest& request, const std::string& forced_algorithm) override;
  runtime::Work Launch(const AcceptedCall& call) override;
  bool Poll() override;
  bool Active() const override { return !queue_.empty(); }
  void Fail(const absl::Status& status) override;
  const runtime::CallRecord* Pending() const override {
    return queue_.empty() ? nullptr : &queue_.front()->call.record;
  }
  std::string Explain(const CollectiveRequest& request) override;

 private:
  absl::Status Start(const AcceptedCall& call, NcclOperation* operation);
  absl::Status MakeCommunicator(int device, runtime::Deadline deadline);
  absl::StatusOr<ncclUniqueId> ExchangeId(runtime::Deadline deadline);
  absl::Status UntilIdle(runtime::Deadline deadline, const std::string& doing);
  absl::Status DriveFor(std::chrono::nanoseconds duration, runtime::Deadline deadline, const std::string& doing);
  bool FinishDone();
  void WatchFirst();
  void FinishAll(const absl::Status& status);

  const GroupContext* const group_;
  const NcclApi* const nccl_;
  const cuda::CudaApi* const cuda_;
  std::shared_ptr<NcclOperationPool> pool_;
  std::unique_ptr<NcclCommunicator> communicator_;
  int device_ = -1;
  void* barrier_scratch_ = nullptr;
  std::deque<NcclOperation*> queue_;  // in the order of their launch, which NCCL keeps
  absl::Status status_;
  Clock::time_point next_error_check_;
  Clock::time_point next_report_;
  std::chrono::milliseconds report_interval_ = kFirstReport;
  Clock::time_point overdue_since_;
  bool overdue_ = false;
};

NcclProvider::~NcclProvider() {
  if (!queue_.empty()) {
    Fail(absl::CancelledError("the communicator was destroyed"));
    while (communicator_ != nullptr && !communicator_->Ended()) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    FinishAll(status_);
  } else if (communicator_ != nullptr) {
    communicator_->Close();
  }
  communicator_.reset();  // bounded
  if (barrier_scratch_ != nullptr) {
    const cuda::DeviceScope device(*cuda_, device_);
    (void)cuda_->cudaFree(barrier_scratch_);
  }
}

absl::StatusOr<ServicePlan> NcclProvider::Choose(const CollectiveRequest& request,
                                                 const std::string& forced_algorithm) {
  if (!forced_algorithm.empty()) {
    return absl::InvalidArgumentError("algorithm '" + forced_algorithm +
                                      "' can't be forced for CUDA memory: NCCL chooses; see NCCL_ALGO");
  }
  COHORT_RETURN_IF_ERROR(CheckSupported(request));
  return ServicePlan();
}

std::string NcclProvider::Explain(const CollectiveRequest& request) {
  if (const absl::Status status = CheckSupported(request); !status.ok()) return std::string(status.message());
  const std::string version = std::to_string(nccl_->version / 10000) + "." +
                              std::to_string(nccl_->version / 100 % 100) + "." + std::to_string(nccl_->version % 100);
  return group_->size == 1 ? "a copy on the device: the group has one rank" : "NCCL " + version + ", which chooses";
}

runtime::Work NcclProvider::Launch(const AcceptedCall& call) {
  runtime::BlackBoxWriter& black_box = group_->runtime->segment().black_box();
  const auto refuse = [&](const absl::Status& status) {
    black_box.Finish(call.ticket, runtime::CallState::kFailed);
    return runtime::Work::Finished(status);
  };
  if (!status_.ok()) return refuse(status_);
  const cuda::DeviceScope device(*cuda_, call.request.device);
  absl::Status started = device.status();
  NcclOperation* operation = nullptr;
  if (started.ok()) {
    absl::StatusOr<NcclOperation*> taken = pool_->Take();
    started = taken.status();
    if (started.ok()) operation = *taken;
  }
  if (operation == nullptr) {
    group_->fail(started, -1);
    return refuse(started);
  }
  operation->call = call;
  operation->black_box_ = &black_box;
  operation->started = Clock::now();
  runtime::Work work(operation);
  started = Start(operation->call, operation);  // `call` is the caller's and may change while Start drives the engine
  if (!started.ok()) {
    // The others wait for this rank: the call is theirs, too.
    if (status_.ok()) group_->fail(started, -1);
    Fail(started);
    if (communicator_ == nullptr) {
      operation->Finish(status_);
      return work;
    }
    // NCCL may hold the buffers until it is aborted: Poll ends the operation then.
  }
  if (queue_.empty()) {
    report_interval_ = kFirstReport;
    next_report_ = operation->started + kFirstReport;
  }
  queue_.push_back(operation);
  return work;
}

absl::Status NcclProvider::Start(const AcceptedCall& call, NcclOperation* operation) {
  const runtime::Deadline deadline = runtime::Deadline::After(call.timeout);
  if (device_ >= 0 && device_ != call.request.device) {
    return absl::InvalidArgumentError("this communicator works on device " + std::to_string(device_) +
                                      ", the call is on device " + std::to_string(call.request.device) +
                                      ": make one communicator per device");
  }
  if (device_ < 0) COHORT_RETURN_IF_ERROR(MakeCommunicator(call.request.device, deadline));
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const std::string doing(Name(call.request.kind));
  if (group_->size == 1) {
    COHORT_RETURN_IF_ERROR(CopyAlone(*cuda_, call.request, stream));
  } else {
    {
      const runtime::MutexLock lock(Issuer());
      COHORT_RETURN_IF_ERROR(Enqueue(
          {nccl_, cuda_, communicator_->get(), stream, group_->rank, group_->size, barrier_scratch_}, call.request));
    }
    // A call is on the stream only when NCCL has finished setting it up; almost always at once.
    COHORT_RETURN_IF_ERROR(UntilIdle(deadline, doing));
  }
  return cuda_->ToStatus(cuda_->cudaEventRecord(operation->event, stream), doing);
}

absl::Status NcclProvider::MakeCommunicator(int device, runtime::Deadline deadline) {
  device_ = device;
  if (group_->size == 1) return absl::OkStatus();
  absl::Status status;
  const absl::StatusOr<ncclUniqueId> id = ExchangeId(deadline);
  status = id.status();
  if (status.ok()) {
    const runtime::MutexLock lock(Issuer());
    absl::StatusOr<std::unique_ptr<NcclCommunicator>> made =
        NcclCommunicator::Start(nccl_, *id, group_->rank, group_->size);
    status = made.status();
    if (status.ok()) communicator_ = *std::move(made);
  }
  if (status.ok()) status = UntilIdle(deadline, "making an NCCL communicator");
  if (status.ok() && barrier_scratch_ == nullptr) {
    status = cuda_->ToStatus(cuda_->cudaMalloc(&barrier_scratch_, sizeof(int64_t)), "allocating 8 bytes");
  }
  return status;
}

absl::StatusOr<ncclUniqueId> NcclProvider::ExchangeId(runtime::Deadline deadline) {
  runtime::Runtime& runtime = *group_->runtime;
  const std::string key = "nccl/" + std::to_string(group_->epoch) + "/" + std::to_string(group_->id);
  const std::string version = std::to_string(nccl_->version);
  ncclUniqueId id;
  if (group_->rank == 0) {
    COHORT_RETURN_IF_ERROR(nccl_->ToStatus(nccl_->ncclGetUniqueId(&id), nullptr, "asking NCCL for an id"));
    COHORT_RETURN_IF_ERROR(runtime.Put(key, version + " " + std::string(id.internal, sizeof id.internal), deadline));
    return id;
  }
  while (true) {
    const absl::StatusOr<std::string> value =
        runtime.Get(key, Earlier(deadline, runtime::Deadline::After(std::chrono::milliseconds(20))));
    if (value.ok()) {
      const size_t space = value->find(' ');
      if (space == std::string::npos || value->size() - space - 1 != sizeof id.internal ||
          value->substr(0, space) != version) {
        return absl::FailedPreconditionError("rank " + std::to_string(group_->members[0]) + " uses NCCL " +
                                             value->substr(0, space) + ", this rank " + version +
                                             "; all ranks need the same: install it, or set COHORT_NCCL_LIBRARY");
      }
      std::memcpy(id.internal, value->data() + space + 1, sizeof id.internal);
      return id;
    }
    if (!absl::IsDeadlineExceeded(value.status()) && !absl::IsNotFound(value.status())) return value.status();
    COHORT_RETURN_IF_ERROR(DriveFor(std::chrono::microseconds(100), deadline,
                                    "waiting for the NCCL id of rank " + std::to_string(group_->members[0])));
  }
}

// Lets other operations of the process move while this one waits: peers may need them to come to their own call.
absl::Status NcclProvider::DriveFor(std::chrono::nanoseconds duration, runtime::Deadline deadline,
                                    const std::string& doing) {
  group_->runtime->engine().DriveUntil([this] { return !status_.ok(); },
                                       Earlier(deadline, runtime::Deadline::After(duration)));
  COHORT_RETURN_IF_ERROR(status_);
  if (deadline.passed()) return absl::DeadlineExceededError(doing + " did not end in the time that the call allows");
  return absl::OkStatus();
}

absl::Status NcclProvider::UntilIdle(runtime::Deadline deadline, const std::string& doing) {
  while (true) {
    const absl::StatusOr<bool> idle = communicator_->Check();
    if (!idle.ok()) return idle.status();
    if (*idle) return absl::OkStatus();
    COHORT_RETURN_IF_ERROR(DriveFor(std::chrono::microseconds(50), deadline, doing));
  }
}

bool NcclProvider::FinishDone() {
  bool moved = false;
  while (!queue_.empty()) {
    const cudaError_t state = cuda_->cudaEventQuery(queue_.front()->event);
    if (state == cudaErrorNotReady) break;
    if (state != cudaSuccess) {
      group_->fail(cuda_->ToStatus(state, std::string(Name(queue_.front()->call.request.kind))), -1);
      break;
    }
    NcclOperation* operation = queue_.front();
    queue_.pop_front();
    overdue_ = false;
    report_interval_ = kFirstReport;
    next_report_ = Clock::now() + kFirstReport;
    operation->Finish(absl::OkStatus());
    moved = true;
  }
  return moved;
}

bool NcclProvider::Poll() {
  if (queue_.empty()) return false;
  if (!status_.ok()) {
    if (communicator_ != nullptr && !communicator_->Ended()) return false;
    FinishAll(status_);
    return true;
  }
  if (FinishDone()) return true;
  if (status_.ok()) WatchFirst();
  return !status_.ok();
}

// Errors inside NCCL, calls that stand still, calls whose time is up.
void NcclProvider::WatchFirst() {
  const Clock::time_point now = Clock::now();
  const NcclOperation& first = *queue_.front();
  if (communicator_ != nullptr && now >= next_error_check_) {
    next_error_check_ = now + kErrorInterval;
    if (const absl::StatusOr<bool> state = communicator_->Check(); !state.ok()) {
      group_->fail(state.status(), -1);
      return;
    }
  }
  const runtime::RankSet members{.everyone = false, .ranks = group_->members};
  const uint64_t sequence = first.call.record.signature.sequence;
  if (overdue_) {
    if (now < overdue_since_ + kVerdictTime) return;
    group_->fail(absl::DeadlineExceededError(std::string(Name(first.call.request.kind)) + " #" +
                                             std::to_string(sequence) + " at " + first.call.record.site +
                                             " did not end in its time; CallOptions::timeout sets it"),
                 -1);
  } else if (now - first.started >= first.call.timeout) {
    overdue_ = true;
    overdue_since_ = now;
    group_->runtime->ReportStall(group_->id, sequence, members, /*expired=*/true);
  } else if (now >= next_report_) {
    report_interval_ = std::min(2 * report_interval_, kLongestReport);
    next_report_ = now + report_interval_;
    group_->runtime->ReportStall(group_->id, sequence, members, /*expired=*/false);
  }
}

void NcclProvider::Fail(const absl::Status& status) {
  if (!status_.ok()) return;
  status_ = status;
  // Works end when the abort has, in Poll: only then is their memory no longer used.
  if (communicator_ != nullptr) communicator_->Abort();
}

void NcclProvider::FinishAll(const absl::Status& status) {
  while (!queue_.empty()) {
    NcclOperation* operation = queue_.front();
    queue_.pop_front();
    operation->Finish(status);
  }
}

}  // namespace nccl

absl::StatusOr<std::unique_ptr<Provider>> MakeNcclProvider(const GroupContext* group, const NcclOptions& options) {
  COHORT_ASSIGN_OR_RETURN(const cuda::CudaApi* cuda_api, cuda::LoadCuda(options.cuda_library));
  COHORT_ASSIGN_OR_RETURN(const nccl::NcclApi* nccl_api, nccl::LoadNccl(options.nccl_library));
  return std::make_unique<nccl::NcclProvider>(group, nccl_api, cuda_api);
}

}  // namespace cohort::comm
