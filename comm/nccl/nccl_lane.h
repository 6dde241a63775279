// The calls of one device that are under way, in the order of their launch, which NCCL keeps.
#pragma once

#include <chrono>

#include "cohort/comm/nccl/library/device_check.h"
#include "cohort/comm/nccl/nccl_device.h"
#include "cohort/comm/nccl/nccl_operation.h"
#include "cohort/comm/provider/stall_watch.h"

namespace cohort::comm::nccl {

class NcclLane {
 public:
  NcclLane(const NcclContext* context, int index, int ordinal);
  ~NcclLane();

  NcclDevice& device() { return device_; }
  DeviceCheck& check() { return check_; }
  // A new operation, with the caller's reference and one that its Finish drops. The device is current.
  absl::StatusOr<NcclOperation*> Take();
  const NcclOperation* first() const { return queue_.front(); }
  bool empty() const { return queue_.empty(); }
  // Whether this collective is under way.
  bool WaitsIn(uint64_t sequence) const;

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
  // The first call stands still, or the time of one is up.
  void OnStill(StallWatch::Event event);
  NcclOperation* Pop();
  const NcclOperation* MostOverdue();
  void Compare(bool expired);

  const NcclContext& context_;
  NcclDevice device_;
  DeviceCheck check_;
  StatePool<NcclOperation> pool_;
  runtime::BlackBoxWriter& black_box_;
  StateQueue<NcclOperation> queue_;
  cudaStream_t wake_stream_ = nullptr;  // made when first armed
  Clock::time_point next_error_check_;
  uint64_t earliest_deadline_;  // at most the earliest of the calls under way
  StallWatch watch_;
};

}  // namespace cohort::comm::nccl
