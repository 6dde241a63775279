// One device's part in a group's NCCL calls: the communicator of the k-th devices of all ranks (device group k), made
// on first use.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/nccl/device_life.h"
#include "cohort/comm/nccl/launch_turn.h"
#include "cohort/comm/nccl/library/launch_shape.h"
#include "cohort/comm/nccl/library/nccl_agreement.h"
#include "cohort/comm/nccl/library/nccl_pool.h"
#include "cohort/comm/nccl/nccl_calls.h"
#include "cohort/comm/nccl/nccl_exchange.h"
#include "cohort/comm/nccl/registrations.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/runtime/base/checked_state.h"

namespace cohort::comm::nccl {

// State that all devices of a provider share. Outlives them.
struct NcclContext {
  const GroupContext* group = nullptr;
  const NcclApi* nccl = nullptr;  // null: this rank has none
  const cuda::CudaApi* cuda = nullptr;
  std::string why;       // there is no NCCL
  std::string settings;  // Offer::settings
  std::shared_ptr<NcclPool> pool;
  bool guards_order = true;  // GuardsOrder
  // Drives the engine until `done`, which any thread may ask. Not OK: the group has failed, or the deadline has passed.
  std::function<absl::Status(const std::function<bool()>& done, runtime::Deadline deadline, const std::string& doing)>
      drive;
  // The same for a moment, where nobody tells when it is done.
  std::function<absl::Status(runtime::Deadline deadline, const std::string& doing)> drive_on;
};

// A call that is to be put on its stream.
struct IssuedCall {
  const AcceptedCall* call;
  cudaEvent_t event;  // recorded behind it
  bool captured;      // its stream is being captured into a graph
};

class NcclDevice {
 public:
  // `index`: k, of the device group; `ordinal`: CUDA's number of the device in this process.
  NcclDevice(const NcclContext* context, int index, int ordinal)
      : context_(*context),
        index_(index),
        ordinal_(ordinal),
        turn_(context->cuda, context->pool.get(), ordinal, context->guards_order),
        room_(context->pool->room(ordinal)) {}
  // Keeps the communicator of a group that ended in order for a later one. Otherwise Stop was called before.
  ~NcclDevice();
  NcclDevice(const NcclDevice&) = delete;
  NcclDevice& operator=(const NcclDevice&) = delete;

  int ordinal() const { return ordinal_; }
  // kPreparing: Prepare may run further up this thread's stack. It drives the engine, and the engine has called us.
  DeviceLife life() const { return life_; }
  // Why all calls go through host memory; empty: they don't.
  const std::string& staged() const { return staged_; }
  // Why NCCL does not serve this call alone; empty: it does. Has a communicator.
  std::string WhyNot(const CollectiveRequest& request) const { return WhyNotNccl(request, communicator_->abilities()); }
  // Why this call goes through host memory; empty: NCCL serves it, alone or with our kernels. Prepared.
  std::string WhyStaged(const CollectiveRequest& request) const;
  // The call is an exchange (nccl_exchange.h) whose first one has been made, so that it can be captured; or none.
  bool Connected(const CollectiveRequest& request) const { return exchanged_ || WhyNot(request).empty(); }

  // Makes the communicator, together with all members. Once. The device is current.
  absl::Status Prepare(runtime::Deadline deadline);
  // A call of a group of one. The device is current. kUnimplemented: there is no kernel for it; the group goes on.
  absl::Status RunAlone(const CollectiveRequest& request, cudaStream_t stream, bool captured);
  // Puts the call, or a batch of them, on its stream (nccl_issue.h). NCCL has done so when this returns. Prepared, none
  // staged; the device is current.
  absl::Status Enqueue(std::span<const IssuedCall> calls, runtime::Deadline deadline);
  LaunchTurn& turn() { return turn_; }
  LaunchRoom& room() { return room_; }
  // NCCL's asynchronous error.
  absl::Status Check();
  // Makes the communicator of the child group of a split, if the library can. Called on all members; waits until NCCL
  // has done with an earlier one, driving the engine.
  absl::Status Split(int color, int key, uint64_t child, runtime::Deadline deadline);
  // The group has failed: stops what is enqueued. Stopped: nothing of it runs any more.
  void Stop();
  bool Stopped();
  // After Stop: waits until it is Stopped, which takes a bounded time.
  void AwaitStop();
  // After Stopped: frees what it might have used until then, unless it was left behind.
  void FreeKept();
  bool left_behind() const { return communicator_ != nullptr && communicator_->left_behind(); }
  // Makes device memory known to NCCL until this object goes, where the library can; collective. NCCL has done so when
  // this returns; drives the engine. Prepared; the device is current.
  absl::Status Register(void* data, size_t bytes, runtime::Deadline deadline);

 private:
  friend class NcclIssue;
  std::string StoreKey() const;
  Abilities MyAbilities() const;
  absl::Status Join(runtime::Deadline deadline);
  absl::Status MakeLauncher(runtime::Deadline deadline);
  // Gets the communicator: a new one, one that is used again, or what is left of the revoked one.
  absl::Status Obtain(const NcclPool::Named& revoked, runtime::Deadline deadline);
  absl::StatusOr<Decision> AgreeOn(const NcclPool::Named& idle, const NcclPool::Named& revoked,
                                   runtime::Deadline deadline);
  absl::Status Make(const Decision& decision, NcclCommunicator* revoked);
  CallTarget Target();
  // Device memory that NCCL may use until it is Stopped; null: none.
  void Keep(void* memory) {
    if (memory != nullptr) kept_.push_back(memory);
  }
  absl::Status UntilIdle(NcclCommunicator* communicator, runtime::Deadline deadline, const std::string& doing);

  const NcclContext& context_;
  const int index_;
  const int ordinal_;
  runtime::CheckedState<DeviceLife> life_{DeviceLife::kFresh};
  bool settling_ = false;  // NCCL still works on something of ours other than a call
  std::string staged_;
  SharedCommunicator communicator_;
  void* scratch_ = nullptr;  // for barriers
  LaunchTurn turn_;
  Registrations registrations_;
  std::vector<std::pair<void*, cudaStream_t>> temporaries_;  // CallTarget::temporaries
  std::vector<void*> kept_;                                  // until NCCL has stopped
  std::vector<std::shared_ptr<NcclExchange>> left_;          // the same
  KnownLaunches known_;                                      // without peers to wait for
  LaunchRoom& room_;
  cuda::ReductionKernels* kernels_ = nullptr;
  bool exchanged_ = false;
};

}  // namespace cohort::comm::nccl
