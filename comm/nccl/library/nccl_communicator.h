// One NCCL communicator that never blocks and whose end is bounded in time.
#pragma once

#include <atomic>
#include <chrono>
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
  // members call it. It shares the parent's channels and memory. The library must have ncclCommSplit.
  Made Split(int color, int key);
  // Starts to make the communicator without `excluded`, whom nobody waits for. All others call it, after Revoke has
  // finished. The library must have ncclCommShrink.
  Made Shrink(std::vector<int> excluded);
  // Ends as Abort does, and waits for that.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  ncclComm_t get() const { return communicator_; }
  // Its members have agreed on these. Members of a split one are members of the parent, too.
  const Abilities& abilities() const { return abilities_; }
  void set_abilities(const Abilities& abilities) { abilities_ = abilities; }
  // True when nothing is under way inside NCCL (creation, a call that it has not enqueued yet); false while it is; or
  // its asynchronous error.
  absl::StatusOr<bool> Check();

  // Stops what is enqueued but keeps the communicator for Shrink. False where the library can't or it failed: Abort.
  // Stopped() tells when it is over.
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
  NcclCommunicator(const NcclApi* api, std::shared_ptr<Waker> waker) : api_(api), waker_(std::move(waker)) {}
  void End(bool abort);

  struct Ending {
    std::atomic<bool> finished{false};
    std::chrono::steady_clock::time_point deadline;
  };
  const NcclApi* const api_;
  const std::shared_ptr<Waker> waker_;
  ncclComm_t communicator_ = nullptr;
  Abilities abilities_;
  bool revoking_ = false;
  std::chrono::steady_clock::time_point revoke_deadline_;
  std::shared_ptr<Ending> ending_;
};

}  // namespace cohort::comm::nccl
