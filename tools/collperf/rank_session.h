// A rank of a measurement: its runtime, its group of all ranks, the gate before calls, and its device where calls are
// on device memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"
#include "tools/collperf/device_memory.h"
#include "tools/measure/gate.h"
#include "tools/measure/shared_memory.h"

namespace cohort::collperf {

class RankSession {
 public:
  // Joins the job, or a world of one. `transports` as in CommunicatorOptions. With kCuda it opens the rank's first
  // device.
  static absl::StatusOr<std::unique_ptr<RankSession>> Start(const std::string& transports,
                                                            comm::MemoryKind memory = comm::MemoryKind::kHost);
  // The same in a job that `runtime` has joined.
  static absl::StatusOr<std::unique_ptr<RankSession>> Start(std::unique_ptr<runtime::Runtime> runtime,
                                                            const std::string& transports, comm::MemoryKind memory);

  int rank() const { return world_->rank(); }
  int ranks() const { return world_->size(); }
  runtime::Runtime& runtime() { return *runtime_; }
  comm::Communicator& world() { return *world_; }
  measure::Gate& gate() { return *gate_; }
  // Null: calls are on host memory.
  CudaDevice* device() { return device_.get(); }
  comm::MemoryKind memory() const { return device_ == nullptr ? comm::MemoryKind::kHost : comm::MemoryKind::kCuda; }
  int device_ordinal() const { return device_ == nullptr ? 0 : device_->ordinal(); }
  void* stream() const { return device_ == nullptr ? nullptr : device_->stream(); }
  // The first call on device memory, untimed: NCCL makes its communicator. `algorithm` as in CallOptions. Collective.
  absl::Status ConnectDevices(const std::string& algorithm);
  // How a call on device memory is served, after ConnectDevices: "nccl", "staged" (through host memory) or "copy" (one
  // rank). Collective; the same on all ranks.
  absl::StatusOr<std::string_view> DeviceService(comm::CollectiveKind kind, comm::DataType dtype);
  // The device and the library that serves it, for the head of a report.
  std::string DescribeDevice();
  // "shm", "ucx", "shm+ucx": what this rank reaches its peers by; "none" in a world of one. Collective.
  absl::StatusOr<std::string> TransportNames();
  // The name of the algorithm that this rank's latest call used; "-" where there was none.
  std::string LatestAlgorithm();
  // Ends in order.
  absl::Status Finish();

 private:
  // shm, ucx, tcp, others: 1 where this rank reaches a peer by it.
  using Uses = std::array<uint64_t, 4>;

  RankSession() = default;
  absl::Status OpenDevice();
  // The communicator's explanation of such a call on device memory.
  std::string ExplainOnDevice(comm::CollectiveKind kind, comm::DataType dtype) const;
  absl::StatusOr<Uses> UsedTransports();
  // Collective. In shared memory where all ranks can map rank 0's, else a barrier of comm's.
  absl::Status MakeGate();
  // Lets the engine work, and tells whether the group can: a rank that is lost comes to no gate.
  absl::Status Look();

  std::string transports_;
  std::unique_ptr<CudaDevice> device_;             // outlives the group
  std::unique_ptr<measure::SharedMemory> memory_;  // outlives the gate
  std::unique_ptr<runtime::Runtime> runtime_;
  std::unique_ptr<comm::Communicator> world_;
  std::unique_ptr<measure::Gate> gate_;
};

}  // namespace cohort::collperf
