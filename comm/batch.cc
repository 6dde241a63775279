#include "comm/batch.h"

#include "comm/group.h"

namespace cohort::comm {

Batch& Batch::Add(const CallArguments& arguments, const CallOptions& options) {
  calls_.push_back({arguments, options});
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

Batch& Batch::Send(ConstBuffer in, int peer, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kSend, in, {}, ReduceOp::kSum, -1, peer, site}, options);
}

Batch& Batch::Recv(Buffer out, int peer, const CallOptions& options, Site site) {
  return Add({CollectiveKind::kRecv, {}, out, ReduceOp::kSum, -1, peer, site}, options);
}

Work Batch::Submit() {
  Work work = communicator_.group_->SubmitBatch(calls_);
  calls_.clear();
  return work;
}

}  // namespace cohort::comm
