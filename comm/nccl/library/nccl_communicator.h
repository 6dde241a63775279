// One NCCL communicator that never blocks its owner and whose end is bounded in time.
//
// NCCL (since about 2.27) makes a thread for each launch of a non-blocking communicator: 65 us of host time, where a
// blocking one takes 10. A blocking one can't be made in bounded time, though, nor left where a peer does not come. So
// there are two where the library can stop a blocking one from outside (ncclCommRevoke, 2.28.7):
//
//   control    non-blocking: made from an id, split, shrunk; launches nothing
//   launcher   blocking, a split of it with all members: launches
//
// Launches that may wait for peers, to make connections, are made in a thread of their own. The control makes none, so
// that it takes little memory.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/nccl/library/nccl_api.h"
#include "cohort/comm/nccl/library/waker.h"

namespace cohort::comm::nccl {

class NcclCommunicator {
 public:
  using Made = absl::StatusOr<std::unique_ptr<NcclCommunicator>>;

  // Starts to make the communicator of `size` ranks, on the current device. All members do, with the id that one of
  // them got from ncclGetUniqueId; Check tells when it is there. `waker` is told when it has ended.
  static Made Start(const NcclApi* api, std::shared_ptr<Waker> waker, const ncclUniqueId& id, int rank, int size);
  // Starts to make the communicator of those who pass the same color, ordered by key; null where that is negative. All
  // members call it. The library must have ncclCommSplit.
  Made Split(int color, int key);
  // Starts to make the communicator without `excluded`, whom nobody waits for. All others call it, after Revoke has
  // finished. The library must have ncclCommShrink.
  Made Shrink(std::vector<int> excluded);
  // Ends as Abort does, and waits for that.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Starts to make the launcher; collective. Check tells when it is there. Once, where the abilities say so.
  absl::Status MakeLauncher();
  bool has_launcher() const { return launcher_ != nullptr; }

  ncclComm_t get() const { return Load(communicator_); }
  // Takes the calls, and the memory that is registered.
  ncclComm_t launcher() const { return Load(launcher_ != nullptr ? launcher_ : communicator_); }
  // Makes a call on the launcher that may wait for peers, in a thread of its own: Check tells when it has returned, and
  // fails where it did. It owns all that it uses, or what it uses outlives Stopped. Nothing is under way.
  // kResourceExhausted: there are no more threads. `doing` begins the error's text.
  absl::Status StartCall(const std::string& doing, std::function<absl::StatusOr<ncclResult_t>()> call);
  // Such a call has not returned yet.
  bool calling() const { return calling_ != nullptr && !calling_->finished.load(std::memory_order_acquire); }

  // Its members have agreed on these. Members of a split one are members of the parent, too.
  const Abilities& abilities() const { return abilities_; }
  void set_abilities(const Abilities& abilities) { abilities_ = abilities; }
  // True when nothing is under way inside NCCL (creation, a call that it has not enqueued yet); false while it is; or
  // its asynchronous error, or that of StartCall.
  absl::StatusOr<bool> Check();

  // Stops what is enqueued but keeps the communicator for Shrink. False where there is no launcher: Abort. Stopped()
  // tells when it is over.
  bool Revoke();
  // Ends it in order: waits for what is enqueued. Or not: what is enqueued is stopped. Both in a thread of their own,
  // since NCCL may block in them; aborts of several communicators go on beside each other, since one may wait for
  // another's kernels. Stopped says when that is over, or kEndLimit has passed and the thread was left behind.
  void Close();
  void Abort();
  // After Revoke, Close or Abort: nothing of what was enqueued runs any more.
  bool Stopped();
  // The end was not over within kEndLimit: kernels may still run.
  bool left_behind() const;

  static constexpr std::chrono::seconds kEndLimit{5};

 private:
  // NCCL fills it in when the communicator is there, from a thread of its own: for one that is split or shrunk, when
  // its parent is idle again.
  using Handle = std::shared_ptr<ncclComm_t>;
  static Handle NewHandle() { return std::make_shared<ncclComm_t>(nullptr); }
  static ncclComm_t Load(const Handle& handle) {
    return handle == nullptr ? nullptr : __atomic_load_n(handle.get(), __ATOMIC_ACQUIRE);
  }
  // A thread's work.
  struct Calling {
    std::string doing;
    std::atomic<bool> finished{false};
    absl::StatusOr<ncclResult_t> result = ncclSuccess;
  };
  struct Revocation {
    std::chrono::steady_clock::time_point deadline;
    std::atomic<bool> finished{false};
    std::atomic<bool> worked{false};  // what was enqueued has been stopped
  };
  struct Ending {
    std::chrono::steady_clock::time_point deadline;
    std::atomic<bool> finished{false};
  };

  NcclCommunicator(const NcclApi* api, std::shared_ptr<Waker> waker)
      : api_(api), waker_(std::move(waker)), communicator_(NewHandle()) {}
  void End(bool abort);
  absl::StatusOr<bool> CheckOne(ncclComm_t communicator);

  const NcclApi* const api_;
  const std::shared_ptr<Waker> waker_;
  Handle communicator_;
  Handle launcher_;
  std::vector<Handle> making_;  // of others, which NCCL still has to fill in
  Abilities abilities_;
  std::shared_ptr<Calling> calling_;
  absl::Status failure_;  // of a call
  std::shared_ptr<Revocation> revoking_;
  std::shared_ptr<Ending> ending_;
};

}  // namespace cohort::comm::nccl
