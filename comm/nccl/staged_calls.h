// Calls on CUDA memory that NCCL can't serve, through pinned host memory:
//
//   device ──copy──► pinned A ──► a provider of host memory ──► pinned A ──copy──► device
//   device ──copy──► pinned B       (the next chunk, meanwhile)
//
// Blocks are cut into chunks of at most kChunkBytes in all; two chunks are in flight, so that copies go on while the
// host reduces and sends. All members cut alike: the cut depends on kind, count, type and the group's size only.
// Unequal blocks go as a whole, packed one after another, since a member does not know how long the others' are.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/provider/provider.h"

namespace cohort::comm::nccl {

class StagedCalls {
 public:
  using MakeHostProvider = std::function<std::unique_ptr<Provider>(bool messages)>;
  // Drives the engine until `done`; not OK: the group has failed, or the deadline has passed.
  using Drive = std::function<absl::Status(const std::function<bool()>& done, runtime::Deadline deadline)>;

  // `group` and `cuda` outlive it. All calls are on device `ordinal`.
  StagedCalls(const GroupContext* group, const cuda::CudaApi* cuda, int ordinal, const MakeHostProvider& make,
              Drive drive);
  // Bounded in time. Pinned memory that copies still wait to use is left to the process; they read the caller's memory
  // when its stream gets to them, and write none.
  ~StagedCalls();

  // Runs the call, and returns when its result is on its way back on the call's stream: what follows there finds it.
  // `call` is read during the call only. The device is current.
  absl::Status Run(const AcceptedCall& call);
  bool Poll();
  bool Active() const;
  void Fail(const absl::Status& status);

  // Pinned memory of one chunk, input and output each; a power of two. More for unequal blocks.
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

  bool Copied();
  absl::Status RunUnequal(const AcceptedCall& call, runtime::Deadline deadline);
  absl::Status Prepare();
  // Makes the stage's memory hold that many bytes, input and output each.
  absl::Status Grow(Stage& stage, int64_t bytes, runtime::Deadline deadline);
  // Later work on our stream comes after the work on the call's stream.
  absl::Status FollowCall(cudaStream_t stream);
  absl::Status CopyIn(const Cut& cut, int64_t chunk, Stage& stage);
  // `chunk`: what number the part has among those of the call.
  absl::Status RunOnHost(const AcceptedCall& call, const CollectiveRequest& request, int64_t chunk,
                         runtime::Deadline deadline);
  absl::Status CopyOut(const Cut& cut, int64_t chunk, Stage& stage);
  absl::Status Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind);
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
  std::shared_ptr<BlockTable> packed_;  // of unequal blocks
};

}  // namespace cohort::comm::nccl
