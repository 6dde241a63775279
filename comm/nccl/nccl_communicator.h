// One NCCL communicator that never blocks and whose end is bounded in time.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/nccl/nccl_api.h"

namespace cohort::comm::nccl {

class NcclCommunicator {
 public:
  // Starts to make the communicator of `size` ranks, on the current device. All members do, with the id that one of
  // them got from ncclGetUniqueId; Check tells when it is there.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Start(const NcclApi* api, const ncclUniqueId& id, int rank,
                                                                 int size);
  // Ends as Abort does, and waits for that.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  ncclComm_t get() const { return communicator_; }
  // True when nothing is under way inside NCCL (creation, a call that it has not enqueued yet); false while it is; or
  // its asynchronous error.
  absl::StatusOr<bool> Check();

  // Ends it in order: waits for what is enqueued. Or not: what is enqueued is stopped. Both in a thread of their own,
  // since NCCL may block in them; Ended says when that is over, or kEndLimit has passed and the thread was left behind.
  void Close();
  void Abort();
  bool Ended();

  static constexpr std::chrono::seconds kEndLimit{5};

 private:
  explicit NcclCommunicator(const NcclApi* api) : api_(api) {}
  void End(bool abort);

  struct Ending {
    std::atomic<bool> finished{false};
    std::chrono::steady_clock::time_point deadline;
  };
  const NcclApi* const api_;
  ncclComm_t communicator_ = nullptr;
  std::shared_ptr<Ending> ending_;
};

}  // namespace cohort::comm::nccl
