#include "cohort/comm/nccl/nccl_calls.h"

#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/nccl/nccl_launch.h"

namespace cohort::comm::nccl {
namespace {

std::string Text(DataType dtype) { return std::string(Name(dtype)); }

// The elements of a message: of NCCL's types, or bytes where nothing is computed and NCCL lacks the type.
struct Payload {
  ncclDataType_t dtype = ncclUint8;
  size_t unit = 1;   // NCCL's elements per element
  size_t count = 0;  // of one block, in NCCL's elements
  size_t block_bytes = 0;
};

// NCCL need not know the type of data that are only moved.
Payload PayloadOf(const CollectiveRequest& request) {
  Payload payload;
  payload.block_bytes = static_cast<size_t>(request.count) * SizeOf(request.dtype);
  const bool moved_as_bytes = !Reduces(request.kind) && SizeOf(request.dtype) == 1;
  const std::optional<ncclDataType_t> dtype = moved_as_bytes ? std::nullopt : ToNccl(request.dtype);
  payload.dtype = dtype.value_or(ncclUint8);
  payload.unit = dtype.has_value() ? 1 : SizeOf(request.dtype);
  payload.count = static_cast<size_t>(request.count) * payload.unit;
  return payload;
}

const std::byte* Block(const void* data, int index, const Payload& payload) {
  return static_cast<const std::byte*>(data) + static_cast<size_t>(index) * payload.block_bytes;
}
std::byte* Block(void* data, int index, const Payload& payload) {
  return static_cast<std::byte*>(data) + static_cast<size_t>(index) * payload.block_bytes;
}

void Gather(Launch& launch, const CollectiveRequest& request, const Payload& payload) {
  const CallTarget& target = launch.target();
  if (launch.nccl().ncclGather != nullptr) {
    launch.Keep(launch.nccl().ncclGather(request.in, request.out, payload.count, payload.dtype, request.root,
                                         target.communicator, target.stream));
    return;
  }
  const bool root = target.rank == request.root;
  if (root) launch.Copy(Block(request.out, target.rank, payload), request.in, payload.block_bytes);
  launch.Begin();
  if (!root) launch.Send(request.in, payload.count, payload.dtype, request.root);
  for (int peer = 0; root && peer < target.size; ++peer) {
    if (peer != target.rank) launch.Receive(Block(request.out, peer, payload), payload.count, payload.dtype, peer);
  }
}

void Scatter(Launch& launch, const CollectiveRequest& request, const Payload& payload) {
  const CallTarget& target = launch.target();
  if (launch.nccl().ncclScatter != nullptr) {
    launch.Keep(launch.nccl().ncclScatter(request.in, request.out, payload.count, payload.dtype, request.root,
                                          target.communicator, target.stream));
    return;
  }
  const bool root = target.rank == request.root;
  if (root) launch.Copy(request.out, Block(request.in, target.rank, payload), payload.block_bytes);
  launch.Begin();
  if (!root) launch.Receive(request.out, payload.count, payload.dtype, request.root);
  for (int peer = 0; root && peer < target.size; ++peer) {
    if (peer != target.rank) launch.Send(Block(request.in, peer, payload), payload.count, payload.dtype, peer);
  }
}

// In place the blocks are sent from a copy, since NCCL may receive into a block before it has sent it.
void AllToAll(Launch& launch, const CollectiveRequest& request, const Payload& payload) {
  const CallTarget& target = launch.target();
  const auto blocks = static_cast<size_t>(target.size);
  const void* in = request.in;
  if (request.in_place && payload.block_bytes > 0) {
    void* const copy = launch.Temporary(blocks * payload.block_bytes);
    if (copy == nullptr) return;
    launch.Copy(copy, in, blocks * payload.block_bytes);
    in = copy;
  }
  if (launch.nccl().ncclAlltoAll != nullptr) {
    launch.Keep(
        launch.nccl().ncclAlltoAll(in, request.out, payload.count, payload.dtype, target.communicator, target.stream));
    return;
  }
  launch.Copy(Block(request.out, target.rank, payload), Block(in, target.rank, payload), payload.block_bytes);
  launch.Begin();
  for (int peer = 0; peer < target.size; ++peer) {
    if (peer == target.rank) continue;
    launch.Send(Block(in, peer, payload), payload.count, payload.dtype, peer);
    launch.Receive(Block(request.out, peer, payload), payload.count, payload.dtype, peer);
  }
}

// The blocks of a variable-count call: lists by rank, or of the one block that a buffer holds.
struct UnequalBlocks {
  const CollectiveRequest& request;
  Payload payload;

  size_t in_count(int rank) const { return Count(request.blocks->in_counts, rank); }
  size_t out_count(int rank) const { return Count(request.blocks->out_counts, rank); }
  size_t Bytes(size_t count) const { return count / payload.unit * SizeOf(request.dtype); }
  const std::byte* in(int rank) const {
    return static_cast<const std::byte*>(request.in) + Place(request.blocks->in_places, rank);
  }
  std::byte* out(int rank) const {
    return static_cast<std::byte*>(request.out) + Place(request.blocks->out_places, rank);
  }

 private:
  static int64_t At(const std::vector<int64_t>& list, int rank) {
    return list.empty() ? 0 : list[list.size() == 1 ? 0 : static_cast<size_t>(rank)];
  }
  size_t Count(const std::vector<int64_t>& list, int rank) const {
    return static_cast<size_t>(At(list, rank)) * payload.unit;
  }
  size_t Place(const std::vector<int64_t>& list, int rank) const {
    return static_cast<size_t>(At(list, rank)) * SizeOf(request.dtype);
  }
};

void GatherV(Launch& launch, const UnequalBlocks& blocks) {
  const CallTarget& target = launch.target();
  const int root = blocks.request.root;
  const ncclDataType_t dtype = blocks.payload.dtype;
  if (target.rank == root) launch.Copy(blocks.out(root), blocks.in(root), blocks.Bytes(blocks.in_count(root)));
  launch.Begin();
  if (target.rank != root) launch.Send(blocks.in(target.rank), blocks.in_count(target.rank), dtype, root);
  for (int peer = 0; target.rank == root && peer < target.size; ++peer) {
    if (peer != root) launch.Receive(blocks.out(peer), blocks.out_count(peer), dtype, peer);
  }
}

void ScatterV(Launch& launch, const UnequalBlocks& blocks) {
  const CallTarget& target = launch.target();
  const int root = blocks.request.root;
  const ncclDataType_t dtype = blocks.payload.dtype;
  if (target.rank == root) launch.Copy(blocks.out(root), blocks.in(root), blocks.Bytes(blocks.out_count(root)));
  launch.Begin();
  if (target.rank != root) launch.Receive(blocks.out(target.rank), blocks.out_count(target.rank), dtype, root);
  for (int peer = 0; target.rank == root && peer < target.size; ++peer) {
    if (peer != root) launch.Send(blocks.in(peer), blocks.in_count(peer), dtype, peer);
  }
}

// One broadcast a block, one reduction a block.
void AllGatherV(Launch& launch, const UnequalBlocks& blocks) {
  const CallTarget& target = launch.target();
  launch.Begin();
  for (int root = 0; root < target.size; ++root) {
    const void* in = root == target.rank ? blocks.in(root) : blocks.out(root);
    launch.Keep(launch.nccl().ncclBroadcast(in, blocks.out(root), blocks.out_count(root), blocks.payload.dtype, root,
                                            target.communicator, target.stream));
  }
}

void ReduceScatterV(Launch& launch, const UnequalBlocks& blocks, ncclRedOp_t op) {
  const CallTarget& target = launch.target();
  launch.Begin();
  for (int root = 0; root < target.size; ++root) {
    void* const out = root == target.rank ? blocks.out(root) : nullptr;
    launch.Keep(launch.nccl().ncclReduce(blocks.in(root), out, blocks.in_count(root), blocks.payload.dtype, op, root,
                                         target.communicator, target.stream));
  }
}

// In place the blocks go from a copy, as in AllToAll.
void AllToAllV(Launch& launch, const UnequalBlocks& blocks) {
  const CallTarget& target = launch.target();
  std::byte* copy = nullptr;
  if (blocks.request.in_place) {
    size_t bytes = 0;
    for (int peer = 0; peer < target.size; ++peer) bytes += blocks.Bytes(blocks.in_count(peer));
    if (bytes == 0) return;
    copy = static_cast<std::byte*>(launch.Temporary(bytes));
    if (copy == nullptr) return;
    for (int peer = 0; peer < target.size; ++peer) {
      const size_t length = blocks.Bytes(blocks.in_count(peer));
      launch.Copy(copy, blocks.in(peer), length);
      copy += length;
    }
    copy -= bytes;
  } else {
    launch.Copy(blocks.out(target.rank), blocks.in(target.rank), blocks.Bytes(blocks.in_count(target.rank)));
  }
  launch.Begin();
  for (int peer = 0; peer < target.size; ++peer) {
    const std::byte* from = copy == nullptr ? blocks.in(peer) : copy;
    if (copy != nullptr) copy += blocks.Bytes(blocks.in_count(peer));
    if (peer == target.rank) continue;
    launch.Send(from, blocks.in_count(peer), blocks.payload.dtype, peer);
    launch.Receive(blocks.out(peer), blocks.out_count(peer), blocks.payload.dtype, peer);
  }
}

void Add(Launch& launch, const CollectiveRequest& request) {
  const NcclApi& nccl = launch.nccl();
  const Payload payload = PayloadOf(request);
  const size_t n = payload.count;
  ncclComm_t const communicator = launch.target().communicator;
  cudaStream_t const stream = launch.target().stream;
  const ncclRedOp_t op = launch.OpOf(request);
  switch (request.kind) {
    case CollectiveKind::kAllReduce:
      return launch.Keep(nccl.ncclAllReduce(request.in, request.out, n, payload.dtype, op, communicator, stream));
    case CollectiveKind::kBroadcast:
      return launch.Keep(
          nccl.ncclBroadcast(request.in, request.out, n, payload.dtype, request.root, communicator, stream));
    case CollectiveKind::kReduce:
      return launch.Keep(
          nccl.ncclReduce(request.in, request.out, n, payload.dtype, op, request.root, communicator, stream));
    case CollectiveKind::kAllGather:
      return launch.Keep(nccl.ncclAllGather(request.in, request.out, n, payload.dtype, communicator, stream));
    case CollectiveKind::kReduceScatter:
      return launch.Keep(nccl.ncclReduceScatter(request.in, request.out, n, payload.dtype, op, communicator, stream));
    case CollectiveKind::kGather:
      return Gather(launch, request, payload);
    case CollectiveKind::kScatter:
      return Scatter(launch, request, payload);
    case CollectiveKind::kAllToAll:
      return AllToAll(launch, request, payload);
    case CollectiveKind::kBarrier: {
      void* const scratch = launch.target().barrier_scratch;
      return launch.Keep(nccl.ncclAllReduce(scratch, scratch, 1, ncclInt32, ncclSum, communicator, stream));
    }
    case CollectiveKind::kSend:
      return launch.Send(request.in, n, payload.dtype, request.peer);
    case CollectiveKind::kRecv:
      return launch.Receive(request.out, n, payload.dtype, request.peer);
    case CollectiveKind::kGatherV:
      return GatherV(launch, {request, payload});
    case CollectiveKind::kScatterV:
      return ScatterV(launch, {request, payload});
    case CollectiveKind::kAllGatherV:
      return AllGatherV(launch, {request, payload});
    case CollectiveKind::kReduceScatterV:
      return ReduceScatterV(launch, {request, payload}, op);
    case CollectiveKind::kAllToAllV:
      return AllToAllV(launch, {request, payload});
  }
}

}  // namespace

std::string WhyNotNccl(const CollectiveRequest& request, const Abilities& abilities) {
  if (!Reduces(request.kind)) return "";
  const bool float8 = SizeOf(request.dtype) == 1 && IsFloat(request.dtype);
  if (float8 && request.op == ReduceOp::kPreMulSum) return "NCCL would round the factor to " + Text(request.dtype);
  if (float8 && !abilities.float8) return "NCCL reduces " + Text(request.dtype) + " from 2.24 and devices of 9.0 on";
  if (!ToNccl(request.dtype).has_value()) return "NCCL does not reduce " + Text(request.dtype);
  if (request.op != ReduceOp::kPreMulSum && !ToNccl(request.op).has_value()) {
    return "NCCL has no reduction " + std::string(Name(request.op));
  }
  if (request.op == ReduceOp::kAvg && !IsFloat(request.dtype))
    return "NCCL divides a sum of integers that may have wrapped";
  if (request.determinism == Determinism::kOrderInvariant) return "NCCL fixes no order of its reductions";
  return "";
}

absl::StatusOr<ncclResult_t> Enqueue(CallTarget target, const AcceptedCall& call) {
  Launch launch(target);
  launch.set_stream(call.stream);
  Add(launch, call.request);
  return launch.End();
}

absl::StatusOr<ncclResult_t> EnqueueBatch(CallTarget target, std::span<const AcceptedCall> calls) {
  Launch launch(target);
  launch.Begin();
  for (const AcceptedCall& call : calls) {
    launch.set_stream(call.stream);
    Add(launch, call.request);
  }
  return launch.End();
}

}  // namespace cohort::comm::nccl
