#include "cohort/comm/batch.h"

#include <span>
#include <utility>

#include "cohort/comm/group/group.h"

namespace cohort::comm {

Batch& Batch::Add(const CallArguments& arguments, const CallOptions& options, const BlockLayout& in_blocks,
                  const BlockLayout& out_blocks) {
  if (used_ == calls_.size()) calls_.emplace_back();
  BatchedCall& call = calls_[used_++];
  call.arguments = arguments;
  call.options = options;
  call.in_counts.assign(in_blocks.counts.begin(), in_blocks.counts.end());
  call.in_displacements.assign(in_blocks.displacements.begin(), in_blocks.displacements.end());
  call.out_counts.assign(out_blocks.counts.begin(), out_blocks.counts.end());
  call.out_displacements.assign(out_blocks.displacements.begin(), out_blocks.displacements.end());
  return *this;
}

Batch& Batch::AllReduce(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kAllReduce, in, out, op, -1, -1, site}, options);
}

Batch& Batch::Reduce(ConstBuffer in, Buffer out, ReduceOp op, int root, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kReduce, in, out, op, root, -1, site}, options);
}

Batch& Batch::Broadcast(Buffer buffer, int root, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kBroadcast, buffer, buffer, ReduceOp::kSum, root, -1, site}, options);
}

Batch& Batch::Gather(ConstBuffer in, Buffer out, int root, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kGather, in, out, ReduceOp::kSum, root, -1, site}, options);
}

Batch& Batch::Scatter(ConstBuffer in, Buffer out, int root, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kScatter, in, out, ReduceOp::kSum, root, -1, site}, options);
}

Batch& Batch::AllGather(ConstBuffer in, Buffer out, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kAllGather, in, out, ReduceOp::kSum, -1, -1, site}, options);
}

Batch& Batch::ReduceScatter(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kReduceScatter, in, out, op, -1, -1, site}, options);
}

Batch& Batch::AllToAll(ConstBuffer in, Buffer out, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kAllToAll, in, out, ReduceOp::kSum, -1, -1, site}, options);
}

Batch& Batch::GatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, int root, const CallOptions& options,
                      Site site) {
  return Add({CollectiveKind::kGatherV, in, out, ReduceOp::kSum, root, -1, site}, options, {}, out_blocks);
}

Batch& Batch::ScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, int root, const CallOptions& options,
                       Site site) {
  return Add({CollectiveKind::kScatterV, in, out, ReduceOp::kSum, root, -1, site}, options, in_blocks);
}

Batch& Batch::AllGatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, const CallOptions& options,
                         Site site) {
  return Add({CollectiveKind::kAllGatherV, in, out, ReduceOp::kSum, -1, -1, site}, options, {}, out_blocks);
}

Batch& Batch::ReduceScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, ReduceOp op,
                             const CallOptions& options, Site site) {
  return Add({CollectiveKind::kReduceScatterV, in, out, op, -1, -1, site}, options, in_blocks);
}

Batch& Batch::AllToAllV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, const BlockLayout& out_blocks,
                        const CallOptions& options, Site site) {
  return Add({CollectiveKind::kAllToAllV, in, out, ReduceOp::kSum, -1, -1, site}, options, in_blocks, out_blocks);
}

Batch& Batch::Send(ConstBuffer in, int peer, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kSend, in, {}, ReduceOp::kSum, -1, peer, site}, options);
}

Batch& Batch::Recv(Buffer out, int peer, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kRecv, {}, out, ReduceOp::kSum, -1, peer, site}, options);
}

Work Batch::Submit() {
  const std::span<const BatchedCall> calls(calls_.data(), std::exchange(used_, 0));
  return communicator_.group_->SubmitBatch(calls);
}

}  // namespace cohort::comm
