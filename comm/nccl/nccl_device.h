// One device's part in a group's NCCL calls: the communicator of the k-th devices of all ranks (device group k), made
// on first use.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/cuda/cuda_api.h"
#include "comm/nccl/nccl_agreement.h"
#include "comm/nccl/nccl_pool.h"
#include "comm/provider.h"

namespace cohort::comm::nccl {

// What all devices of a provider share. Outlives them.
struct NcclContext {
  const GroupContext* group = nullptr;
  const NcclApi* nccl = nullptr;  // null: this rank has none
  const cuda::CudaApi* cuda = nullptr;
  std::string why;       // there is no NCCL
  std::string settings;  // Offer::settings
  std::shared_ptr<NcclPool> pool;
  // Drives the engine for `duration`. Not OK: the group has failed, or the deadline has passed.
  std::function<absl::Status(std::chrono::nanoseconds duration, runtime::Deadline deadline, const std::string& doing)>
      drive;
};

class NcclDevice {
 public:
  // `index`: k, of the device group; `ordinal`: CUDA's number of the device in this process.
  NcclDevice(const NcclContext* context, int index, int ordinal)
      : context_(*context), index_(index), ordinal_(ordinal) {}
  // Of a group that ended in order: keeps the communicator for a later one. Else Stop was called before.
  ~NcclDevice();
  NcclDevice(const NcclDevice&) = delete;
  NcclDevice& operator=(const NcclDevice&) = delete;

  int ordinal() const { return ordinal_; }
  bool prepared() const { return prepared_; }
  // Why calls go through host memory; empty: they don't.
  const std::string& staged() const { return staged_; }

  // Makes the communicator, together with all members. The device is current.
  absl::Status Prepare(runtime::Deadline deadline);
  // Puts the call, or a batch of them, on its stream, as one launch. NCCL has done so when this returns. Prepared, not
  // staged; the device is current.
  absl::Status Enqueue(std::span<const AcceptedCall* const> calls, runtime::Deadline deadline);
  // NCCL's asynchronous error.
  absl::Status Check();
  // Makes the communicator of the child group of a split, if it can.
  void Split(int color, int key, uint64_t child);
  // The group has failed: stops what is enqueued. Stopped: nothing of it runs any more.
  void Stop();
  bool Stopped();
  bool left_behind() const { return communicator_ != nullptr && communicator_->left_behind(); }
  // Makes device memory known to NCCL until this object goes, where the library can; collective. Prepared.
  absl::Status Register(void* data, size_t bytes);

 private:
  std::string StoreKey() const;
  absl::Status Make(const Decision& decision);
  void Deregister();
  absl::Status UntilIdle(NcclCommunicator* communicator, runtime::Deadline deadline, const std::string& doing);

  const NcclContext& context_;
  const int index_;
  const int ordinal_;
  bool prepared_ = false;
  bool stopping_ = false;
  bool settling_ = false;  // NCCL still works on something of ours other than a call
  std::string staged_;
  SharedCommunicator communicator_;
  void* scratch_ = nullptr;  // for barriers
  struct Registration {
    void* handle;
    bool window;
  };
  std::vector<Registration> registrations_;
};

}  // namespace cohort::comm::nccl
