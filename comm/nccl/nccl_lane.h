// The calls of one device that are under way, in the order of their launch, which NCCL keeps.
#pragma once

#include <chrono>
#include <memory>

#include "comm/nccl/nccl_device.h"
#include "comm/nccl/nccl_operation.h"

namespace cohort::comm::nccl {

class NcclLane {
 public:
  NcclLane(const NcclContext* context, int index, int ordinal);
  ~NcclLane();

  NcclDevice& device() { return device_; }
  NcclOperationPool& pool() { return *pool_; }
  const NcclOperation* first() const { return queue_.front(); }
  bool empty() const { return queue_.empty(); }

  // The launch-order guard (launch_order.h). Before a call is launched: its stream waits for the device's last call of
  // another communicator. Afterwards: the call whose end `event` tells was the device's last one.
  absl::Status KeepOrder(cudaStream_t stream) const;
  void NoteIssued(cudaEvent_t event);
  // Nobody waits for this communicator's calls any more: it has failed.
  void ForgetIssued();

  void Push(NcclOperation* operation);
  // Ends those that the device has finished; true when there were any. Fails the group where the device says so.
  bool FinishDone();
  // Errors inside NCCL, calls that stand still, calls whose time is up: fails the group.
  void Watch();
  // The engine is about to sleep: lets the completion of the first call wake it.
  void Arm();
  void FinishAll(const absl::Status& status);

 private:
  using Clock = std::chrono::steady_clock;
  void WatchDeadline(Clock::time_point now);

  const NcclContext& context_;
  NcclDevice device_;
  const std::shared_ptr<NcclOperationPool> pool_;
  runtime::BlackBoxWriter& black_box_;
  NcclQueue queue_;
  cudaStream_t wake_stream_ = nullptr;  // made when first armed
  Clock::time_point next_error_check_;
  Clock::time_point next_report_;
  std::chrono::milliseconds report_interval_{};
  Clock::time_point overdue_since_;
  bool overdue_ = false;
};

}  // namespace cohort::comm::nccl
