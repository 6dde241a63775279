// NCCL's calls of one launch, and what belongs to them on the stream.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/nccl/library/nccl_api.h"
#include "cohort/comm/nccl/nccl_calls.h"
#include "cohort/comm/request.h"

namespace cohort::comm::nccl {

// Keeps the first error and always ends the group that it began.
class Launch {
 public:
  explicit Launch(const CallTarget& target) : target_(target) {}
  ~Launch() { (void)End(); }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  const CallTarget& target() const { return target_; }
  const NcclApi& nccl() const { return *target_.nccl; }
  void set_stream(void* stream) { target_.stream = static_cast<cudaStream_t>(stream); }

  // All calls from here to End are one launch. Sends and receives need it.
  void Begin() {
    if (!std::exchange(grouped_, true)) Keep(nccl().ncclGroupStart());
  }
  void Send(const void* data, size_t count, ncclDataType_t dtype, int peer) {
    Keep(nccl().ncclSend(data, count, dtype, peer, target_.communicator, target_.stream));
  }
  void Receive(void* data, size_t count, ncclDataType_t dtype, int peer) {
    Keep(nccl().ncclRecv(data, count, dtype, peer, target_.communicator, target_.stream));
  }
  void Keep(ncclResult_t result) {
    if (result_ == ncclSuccess || result_ == ncclInProgress) result_ = result == ncclSuccess ? result_ : result;
  }
  // CUDA's operations on the stream come before those of the launch.
  void Keep(cudaError_t error, const char* doing) {
    if (cuda_status_.ok() && error != cudaSuccess) cuda_status_ = target_.cuda->ToStatus(error, doing);
  }
  void Copy(void* to, const void* from, size_t bytes) {
    if (to == from || bytes == 0) return;
    Keep(target_.cuda->cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, target_.stream),
         "copying this rank's own block");
  }
  // Device memory that the caller of Enqueue frees when the launch is on its stream; null: there is none.
  void* Temporary(size_t bytes) {
    void* memory = nullptr;
    Keep(target_.cuda->cudaMallocAsync(&memory, bytes, target_.stream), "allocating a copy of the input");
    if (memory != nullptr) target_.temporaries->emplace_back(memory, target_.stream);
    return memory;
  }
  // NCCL's op of a reduction that it computes (WhyNotNccl); one with a factor lives until End. Not looked at by others.
  ncclRedOp_t OpOf(const CollectiveRequest& request) {
    if (!Reduces(request.kind)) return ncclSum;
    if (request.op != ReduceOp::kPreMulSum) return *ToNccl(request.op);
    Scalar factor = ScalarOf(request.dtype, request.factor);
    ncclRedOp_t op = ncclSum;
    Keep(nccl().ncclRedOpCreatePreMulSum(&op, factor.bytes, *ToNccl(request.dtype), ncclScalarHostImmediate,
                                         target_.communicator));
    if (op != ncclSum) ops_.push_back(op);
    return op;
  }

  absl::StatusOr<ncclResult_t> End() {
    if (std::exchange(grouped_, false)) Keep(nccl().ncclGroupEnd());
    if (!ops_.empty()) [[unlikely]] {
      for (const ncclRedOp_t op : ops_) (void)nccl().ncclRedOpDestroy(op, target_.communicator);
      ops_.clear();
    }
    if (!cuda_status_.ok()) return cuda_status_;
    return result_;
  }

 private:
  CallTarget target_;
  bool grouped_ = false;
  ncclResult_t result_ = ncclSuccess;
  absl::Status cuda_status_;
  std::vector<ncclRedOp_t> ops_;
};

}  // namespace cohort::comm::nccl
