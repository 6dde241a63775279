#include "cohort/comm/nccl/alone.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "cohort/comm/reduce/reduce.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::nccl {
namespace {

// The one block of the call.
struct Block {
  const std::byte* in;
  std::byte* out;
  size_t count;
};

Block BlockOf(const CollectiveRequest& request) {
  const auto* in = static_cast<const std::byte*>(request.in);
  auto* out = static_cast<std::byte*>(request.out);
  if (request.blocks == nullptr) return {in, out, static_cast<size_t>(request.count)};
  const BlockTable& blocks = *request.blocks;
  const auto element = static_cast<int64_t>(SizeOf(request.dtype));
  return {in + blocks.in_places[0] * element, out + blocks.out_places[0] * element,
          static_cast<size_t>(blocks.in_counts[0])};
}

}  // namespace

absl::Status CopyAlone(const cuda::CudaApi& cuda, const CollectiveRequest& request, cudaStream_t stream) {
  if (IsPointToPoint(request.kind)) {
    return absl::InvalidArgumentError("a group of one rank has no peer to send to or receive from");
  }
  if (request.kind == CollectiveKind::kBarrier) return absl::OkStatus();
  const Block block = BlockOf(request);
  if (block.count == 0 || block.in == block.out) return absl::OkStatus();
  return cuda.ToStatus(
      cuda.cudaMemcpyAsync(block.out, block.in, block.count * SizeOf(request.dtype), cudaMemcpyDeviceToDevice, stream),
      std::string(Name(request.kind)));
}

absl::Status ScaleAlone(const cuda::CudaApi& cuda, cuda::ReductionKernels& kernels, const CollectiveRequest& request,
                        cudaStream_t stream) {
  const Block block = BlockOf(request);
  if (block.count == 0) return absl::OkStatus();
  const DataType wide = AccumulatorOf(request.dtype);
  if (wide == request.dtype) {
    return kernels.Prepare(request.dtype, {block.out, block.in, block.count, request.factor}, stream);
  }
  void* product = nullptr;
  COHORT_RETURN_IF_ERROR(cuda.ToStatus(cuda.cudaMallocAsync(&product, block.count * SizeOf(wide), stream),
                                       "allocating memory for the product of a reduction"));
  absl::Status status = kernels.Prepare(request.dtype, {product, block.in, block.count, request.factor}, stream);
  if (status.ok()) status = kernels.Finish(request.dtype, {block.out, product, block.count, 1}, stream);
  const cudaError_t freed = cuda.cudaFreeAsync(product, stream);
  return status.ok() ? cuda.ToStatus(freed, "freeing the product of a reduction") : status;
}

}  // namespace cohort::comm::nccl
