// Calls on their way onto their streams.
//
// NCCL is entered in a thread of its own where it may have connections to make first. The engine is driven
// meanwhile, and what it calls back may make calls on the same device. All ranks must find the calls of a device in the
// same order, whatever their communicators, so what a device has to issue forms a queue:
//
//   caller        AllReduce (group 1) ── drives the engine ─────────────────────────► returns
//   callback                              └─ Barrier (group 2) ── drives ──► returns
//   queue         [1]                        [1 2]     1 is moved on, ends; 2 is moved on, ends
//
// Every waiting thread moves the first one on, even another's: the caller of 1 can't, while the callback is above it.
#pragma once

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/nccl/nccl_device.h"
#include "cohort/comm/nccl/nccl_exchange.h"
#include "cohort/comm/provider/provider.h"

namespace cohort::comm::nccl {

// A call, or the calls of a batch. Those that NCCL computes are one launch; exchanges follow one by one. Used with
// engine ownership and with the device being current; `calls` outlive it.
class NcclIssue {
 public:
  NcclIssue(NcclDevice* device, std::span<const IssuedCall> calls, runtime::Deadline deadline);
  ~NcclIssue();
  NcclIssue(const NcclIssue&) = delete;
  NcclIssue& operator=(const NcclIssue&) = delete;

  // Until all is on its streams, its events are recorded, and nothing of it is left for NCCL to do; drives the engine.
  absl::Status Run();

 private:
  enum class Stage { kBegin, kNative, kSpread, kFold, kEnd, kRecord, kOver };
  // Whether NCCL has made such a launch before. kNewInGraph: this one does not count as one for later launches.
  enum class Launch { kKnown, kNew, kNewInGraph };

  // Moves on as far as it goes without waiting. True: it is on its streams, or has failed (status_).
  bool Advance();
  // True: there is more to do now; false: NCCL is at work.
  absl::StatusOr<bool> Step();
  // One stage, with the issuer's lock held.
  absl::StatusOr<ncclResult_t> RunStage();
  absl::Status KeepOrder();
  absl::StatusOr<ncclResult_t> LaunchNative();
  absl::StatusOr<ncclResult_t> BeginExchange();
  // Enters NCCL: here, or in a thread of its own where it may wait for peers. `call` owns what it uses.
  template <typename Call>
  absl::StatusOr<ncclResult_t> Enter(Call call);
  absl::Status Record();
  std::string_view name() const;

  NcclDevice& device_;
  const std::span<const IssuedCall> calls_;
  const runtime::Deadline deadline_;
  Stage stage_ = Stage::kBegin;
  bool waiting_ = false;   // for NCCL's thread, or ours
  size_t exchanging_ = 0;  // which call is the exchange, or may be the next one
  std::shared_ptr<NcclExchange> exchange_;
  uint64_t shape_ = 0;
  Launch launch_ = Launch::kKnown;
  absl::Status status_;
};

}  // namespace cohort::comm::nccl
