#include "comm/nccl/nccl_calls.h"

#include <string>

#include "runtime/base/status_macros.h"

namespace cohort::comm::nccl {
namespace {

// What is sent: elements of NCCL's types, or bytes where nothing is computed and NCCL lacks the type.
struct Payload {
  ncclDataType_t dtype = ncclUint8;
  size_t count = 0;  // of one block
  size_t block_bytes = 0;
};

Payload PayloadOf(const CollectiveRequest& request) {
  Payload payload;
  payload.block_bytes = static_cast<size_t>(request.count) * SizeOf(request.dtype);
  const absl::StatusOr<ncclDataType_t> dtype = ToNccl(request.dtype);
  payload.dtype = dtype.ok() ? *dtype : ncclUint8;
  payload.count = dtype.ok() ? static_cast<size_t>(request.count) : payload.block_bytes;
  return payload;
}

const std::byte* Block(const void* data, int index, const Payload& payload) {
  return static_cast<const std::byte*>(data) + static_cast<size_t>(index) * payload.block_bytes;
}
std::byte* Block(void* data, int index, const Payload& payload) {
  return static_cast<std::byte*>(data) + static_cast<size_t>(index) * payload.block_bytes;
}

// Sends and receives of one group call; keeps the first error and always ends the group.
class Exchange {
 public:
  Exchange(const CallTarget& target, const Payload& payload) : target_(target), payload_(payload) {
    Keep(target_.nccl->ncclGroupStart());
  }
  void Send(const void* data, int peer) {
    Keep(target_.nccl->ncclSend(data, payload_.count, payload_.dtype, peer, target_.communicator, target_.stream));
  }
  void Receive(void* data, int peer) {
    Keep(target_.nccl->ncclRecv(data, payload_.count, payload_.dtype, peer, target_.communicator, target_.stream));
  }
  ncclResult_t End() {
    Keep(target_.nccl->ncclGroupEnd());
    return result_;
  }

 private:
  void Keep(ncclResult_t result) {
    if (result_ == ncclSuccess || result_ == ncclInProgress) result_ = result;
  }
  const CallTarget& target_;
  const Payload& payload_;
  ncclResult_t result_ = ncclSuccess;
};

absl::Status CopyOwn(const CallTarget& target, const Payload& payload, void* to, const void* from) {
  if (to == from || payload.block_bytes == 0) return absl::OkStatus();
  return target.cuda->ToStatus(
      target.cuda->cudaMemcpyAsync(to, from, payload.block_bytes, cudaMemcpyDeviceToDevice, target.stream),
      "copying this rank's own block");
}

absl::StatusOr<ncclResult_t> Gather(const CallTarget& target, const CollectiveRequest& request,
                                    const Payload& payload) {
  const bool root = target.rank == request.root;
  if (root) COHORT_RETURN_IF_ERROR(CopyOwn(target, payload, Block(request.out, target.rank, payload), request.in));
  Exchange exchange(target, payload);
  if (!root) exchange.Send(request.in, request.root);
  for (int peer = 0; root && peer < target.size; ++peer) {
    if (peer != target.rank) exchange.Receive(Block(request.out, peer, payload), peer);
  }
  return exchange.End();
}

absl::StatusOr<ncclResult_t> Scatter(const CallTarget& target, const CollectiveRequest& request,
                                     const Payload& payload) {
  const bool root = target.rank == request.root;
  if (root) COHORT_RETURN_IF_ERROR(CopyOwn(target, payload, request.out, Block(request.in, target.rank, payload)));
  Exchange exchange(target, payload);
  if (!root) exchange.Receive(request.out, request.root);
  for (int peer = 0; root && peer < target.size; ++peer) {
    if (peer != target.rank) exchange.Send(Block(request.in, peer, payload), peer);
  }
  return exchange.End();
}

absl::StatusOr<ncclResult_t> AllToAll(const CallTarget& target, const CollectiveRequest& request,
                                      const Payload& payload) {
  COHORT_RETURN_IF_ERROR(
      CopyOwn(target, payload, Block(request.out, target.rank, payload), Block(request.in, target.rank, payload)));
  Exchange exchange(target, payload);
  for (int peer = 0; peer < target.size; ++peer) {
    if (peer == target.rank) continue;
    exchange.Send(Block(request.in, peer, payload), peer);
    exchange.Receive(Block(request.out, peer, payload), peer);
  }
  return exchange.End();
}

absl::StatusOr<ncclResult_t> Call(const CallTarget& target, const CollectiveRequest& request) {
  const NcclApi& nccl = *target.nccl;
  const Payload payload = PayloadOf(request);
  const size_t n = payload.count;
  ncclRedOp_t op = ncclSum;
  if (Reduces(request.kind)) {
    COHORT_ASSIGN_OR_RETURN(op, ToNccl(request.op));
  }
  switch (request.kind) {
    case CollectiveKind::kAllReduce:
      return nccl.ncclAllReduce(request.in, request.out, n, payload.dtype, op, target.communicator, target.stream);
    case CollectiveKind::kBroadcast:
      return nccl.ncclBroadcast(request.in, request.out, n, payload.dtype, request.root, target.communicator,
                                target.stream);
    case CollectiveKind::kReduce:
      return nccl.ncclReduce(request.in, request.out, n, payload.dtype, op, request.root, target.communicator,
                             target.stream);
    case CollectiveKind::kAllGather:
      return nccl.ncclAllGather(request.in, request.out, n, payload.dtype, target.communicator, target.stream);
    case CollectiveKind::kReduceScatter:
      return nccl.ncclReduceScatter(request.in, request.out, n, payload.dtype, op, target.communicator, target.stream);
    case CollectiveKind::kGather:
      return Gather(target, request, payload);
    case CollectiveKind::kScatter:
      return Scatter(target, request, payload);
    case CollectiveKind::kAllToAll:
      return AllToAll(target, request, payload);
    case CollectiveKind::kBarrier:
      return nccl.ncclAllReduce(target.barrier_scratch, target.barrier_scratch, 1, ncclInt32, ncclSum,
                                target.communicator, target.stream);
    case CollectiveKind::kSend:
      return nccl.ncclSend(request.in, n, payload.dtype, request.peer, target.communicator, target.stream);
    case CollectiveKind::kRecv:
      return nccl.ncclRecv(request.out, n, payload.dtype, request.peer, target.communicator, target.stream);
    case CollectiveKind::kGatherV:
    case CollectiveKind::kScatterV:
    case CollectiveKind::kAllGatherV:
    case CollectiveKind::kReduceScatterV:
    case CollectiveKind::kAllToAllV:
      break;  // refused by CheckSupported
  }
  return absl::UnimplementedError("the NCCL provider does not know this kind of call");
}

}  // namespace

absl::Status CheckSupported(const CollectiveRequest& request) {
  if (Reduces(request.kind)) {
    COHORT_RETURN_IF_ERROR(ToNccl(request.dtype).status());
    COHORT_RETURN_IF_ERROR(ToNccl(request.op).status());
  }
  if (HasUnequalBlocks(request.kind)) {
    return absl::UnimplementedError("the NCCL provider has no " + std::string(Name(request.kind)) +
                                    ": pad the blocks to one length, or copy to the host first");
  }
  if (request.kind == CollectiveKind::kAllToAll && request.in_place) {
    return absl::UnimplementedError("NCCL has no all_to_all in place: pass another output buffer");
  }
  return absl::OkStatus();
}

absl::Status Enqueue(const CallTarget& target, const CollectiveRequest& request) {
  const absl::StatusOr<ncclResult_t> result = Call(target, request);
  if (!result.ok()) return result.status();
  return target.nccl->ToStatus(*result, target.communicator, std::string(Name(request.kind)));
}

absl::Status CopyAlone(const cuda::CudaApi& cuda, const CollectiveRequest& request, cudaStream_t stream) {
  if (IsPointToPoint(request.kind)) {
    return absl::InvalidArgumentError("a group of one rank has no peer to send to or receive from");
  }
  const size_t bytes = static_cast<size_t>(request.count) * SizeOf(request.dtype);
  if (request.kind == CollectiveKind::kBarrier || bytes == 0 || request.in == request.out) return absl::OkStatus();
  return cuda.ToStatus(cuda.cudaMemcpyAsync(request.out, request.in, bytes, cudaMemcpyDeviceToDevice, stream),
                       std::string(Name(request.kind)));
}

}  // namespace cohort::comm::nccl
