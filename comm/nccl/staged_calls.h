// Calls on CUDA memory that NCCL can't serve, through pinned host memory:
//
//   device ──copy──► pinned A ──► a provider of host memory ──► pinned A ──copy──► device
//   device ──copy──► pinned B       (the next chunk, meanwhile)
//
// Blocks are cut into chunks of at most kChunkBytes in all; two chunks are in flight, so that copies go on while the
// host reduces and sends. All members cut alike: the cut depends on kind, count, type and the group's size only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "comm/cuda/cuda_api.h"
#include "comm/provider.h"

namespace cohort::comm::nccl {

class StagedCalls {
 public:
  using MakeHostProvider = std::function<std::unique_ptr<Provider>(bool messages)>;
  // Drives the engine until `done`; not OK: the group has failed, or the deadline has passed.
  using Drive = std::function<absl::Status(const std::function<bool()>& done, runtime::Deadline deadline)>;

  // `group` and `cuda` outlive it. All calls are on device `ordinal`.
  StagedCalls(const GroupContext* group, const cuda::CudaApi* cuda, int ordinal, const MakeHostProvider& make,
              Drive drive);
  ~StagedCalls();

  // Runs the call, and returns when its result is on its way back on the call's stream: what follows there finds it.
  // `call` is read during the call only. The device is current.
  absl::Status Run(const AcceptedCall& call);
  bool Poll();
  bool Active() const;
  void Fail(const absl::Status& status);

  // Pinned memory of one chunk, input and output each; a power of two.
  static constexpr int64_t kChunkBytes = 4 << 20;

 private:
  // One of the two chunks in flight.
  struct Stage {
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    int64_t bytes = 0;  // of each
    cudaEvent_t copied_in = nullptr;
    cudaEvent_t copied_out = nullptr;
  };
  struct Cut;

  absl::Status Prepare(int64_t bytes, runtime::Deadline deadline);
  absl::Status CopyIn(const Cut& cut, int64_t chunk, Stage& stage);
  absl::Status RunOnHost(const AcceptedCall& call, const Cut& cut, int64_t chunk, const Stage& stage,
                         runtime::Deadline deadline);
  absl::Status CopyOut(const Cut& cut, int64_t chunk, Stage& stage);
  absl::Status Await(cudaEvent_t event, runtime::Deadline deadline);
  absl::Status Cuda(cudaError_t error) const { return cuda_.ToStatus(error, "staging in host memory"); }

  const GroupContext& group_;
  const cuda::CudaApi& cuda_;
  const int ordinal_;
  const Drive drive_;
  std::unique_ptr<Provider> collectives_;
  std::unique_ptr<Provider> messages_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begun_ = nullptr;
  std::array<Stage, 2> stages_;
};

}  // namespace cohort::comm::nccl
