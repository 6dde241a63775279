// State of NCCL that the groups of one runtime share: the right to issue, and communicators between two owners.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/cuda/reduction_kernels.h"
#include "cohort/comm/nccl/library/nccl_communicator.h"
#include "cohort/comm/nccl/library/waker.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm::nccl {

class LaunchTurn;
class NcclIssue;

using SharedCommunicator = std::shared_ptr<NcclCommunicator>;

// Callers' threads enter NCCL one at a time for a device, whatever the communicators and runtimes, with this lock. The
// threads of calls that may wait for peers (NcclCommunicator::StartCall) do not take it.
runtime::Mutex& IssuerOf(int device);

// The calls of a device that have not ended. CUDA takes 1,024 launches before the first of them has run; then every
// call to CUDA waits, on any thread, and nobody could tell that a peer is missing. A call is one to five launches.
struct LaunchRoom {
  static constexpr int kMost = 192;
  int under_way = 0;
  bool full() const { return under_way >= kMost; }
};

// Used with engine ownership. Lives as long as a provider of its runtime.
class NcclPool {
 public:
  static std::shared_ptr<NcclPool> Of(runtime::Runtime& runtime);
  explicit NcclPool(runtime::Engine* engine) : waker_(std::make_shared<Waker>(engine)) {}
  ~NcclPool();

  const std::shared_ptr<Waker>& waker() const { return waker_; }

  // A communicator and the name that all its members know it by; null: none, with an empty name. Where it lies is told
  // by CUDA's number of the device, which may belong to another device group next time: members compare the names
  // before they use it.
  struct Named {
    std::string name;
    SharedCommunicator communicator;
  };
  // Communicators whose group has ended in order, for a later group of the same world ranks on the same device: making
  // one costs seconds and half a gigabyte of device memory. At most kMostIdle are kept, the oldest goes first.
  void PutIdle(Named named, const std::vector<int>& members, int device);
  Named TakeIdle(const std::vector<int>& members, int device);  // the newest that fits

  // Communicators that a group may use on a device, made by a split of its parent's; and the revoked ones of a group
  // that failed, which it may be shrunk from. Most groups never ask for theirs, so at most kMostChildren and
  // kMostRevoked are kept for a device, and the oldest goes first.
  void PutChild(uint64_t group, int device, Named named) { Keep(children_, kMostChildren, {named, group, device}); }
  Named TakeChild(uint64_t group, int device) { return Take(children_, group, device); }
  void PutRevoked(uint64_t group, int device, Named named) { Keep(revoked_, kMostRevoked, {named, group, device}); }
  Named TakeRevoked(uint64_t group, int device) { return Take(revoked_, group, device); }

  // The reduction kernels of a device, which is current; loaded when first asked for. Null: there are none.
  cuda::ReductionKernels* KernelsOf(const cuda::CudaApi& api, int device);

  // The call that was put on a device last, for the launch-order guard (launch_turn.h). The reference stays valid.
  struct Issued {
    const LaunchTurn* turn = nullptr;  // whose call it was; null: none, or gone
    cudaEvent_t event = nullptr;
  };
  Issued& issued(int device) { return issued_[device]; }

  // The calls on their way through a device. The reference stays valid.
  LaunchRoom& room(int device) { return room_[device]; }

  // Calls that are being put on a device's streams, in order (nccl_issue.h).
  std::vector<NcclIssue*>& issues(int device) { return issues_[device]; }

  static constexpr size_t kMostIdle = 4;
  static constexpr size_t kMostChildren = 16;  // they have no connections, and so take little memory
  static constexpr size_t kMostRevoked = 4;

 private:
  struct Idle {
    Named named;
    std::vector<int> members;
    int device;
  };
  struct Kept {
    Named named;
    uint64_t group;
    int device;
  };
  void Keep(std::vector<Kept>& kept, size_t most, Kept more);
  static Named Take(std::vector<Kept>& kept, uint64_t group, int device);
  // Ends one that nobody will use, without waiting for that.
  void End(SharedCommunicator communicator);

  const std::shared_ptr<Waker> waker_;
  std::vector<Idle> idle_;      // oldest first
  std::vector<Kept> children_;  // oldest first
  std::vector<Kept> revoked_;   // the same
  std::vector<SharedCommunicator> ending_;
  std::map<int, std::vector<NcclIssue*>> issues_;
  std::map<int, Issued> issued_;
  std::map<int, LaunchRoom> room_;
  struct Loaded {
    const cuda::CudaApi* api;
    std::unique_ptr<cuda::ReductionKernels> kernels;
  };
  std::map<int, Loaded> kernels_;
};

}  // namespace cohort::comm::nccl
