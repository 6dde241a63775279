// Batch: starts several calls of one communicator as one, as between ncclGroupStart and ncclGroupEnd.
//
//   Batch batch(*world);
//   batch.Send(out, next).Recv(in, previous);
//   absl::Status status = batch.Submit().Wait();
//
// The calls of a batch run concurrently. Sends and receives never block each other, in any order, and a rank may send
// to itself. No call may depend on another's result. On CUDA memory the calls become one NCCL group. On host memory
// small all-reduces of one type and op are gathered into one message: a hundred of 8 bytes cost little more than one.
//
// All members submit batches with the same collectives in the same order. Sends and receives need only match between
// the two ranks of a pair. A batch whose arguments are refused (the errors of Communicator) starts nothing. One thread
// uses a batch. After Submit it is empty and may be used again.
#pragma once

#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/request.h"

namespace cohort::comm {

class Batch {
 public:
  // `communicator` outlives the batch.
  explicit Batch(Communicator& communicator) : communicator_(communicator) {}

  using Site = Communicator::Site;

  // These add calls of Communicator; nothing is checked or started before Submit. Buffers must be valid from Submit
  // until the Work is done. Options and layouts are copied; the object behind user_op is not.
  Batch& AllReduce(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options = {},
                   Site site = Site::current());
  Batch& Reduce(ConstBuffer in, Buffer out, ReduceOp op, int root, const CallOptions& options = {},
                Site site = Site::current());
  Batch& Broadcast(Buffer buffer, int root, const CallOptions& options = {}, Site site = Site::current());
  Batch& Gather(ConstBuffer in, Buffer out, int root, const CallOptions& options = {}, Site site = Site::current());
  Batch& Scatter(ConstBuffer in, Buffer out, int root, const CallOptions& options = {}, Site site = Site::current());
  Batch& AllGather(ConstBuffer in, Buffer out, const CallOptions& options = {}, Site site = Site::current());
  Batch& ReduceScatter(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options = {},
                       Site site = Site::current());
  Batch& AllToAll(ConstBuffer in, Buffer out, const CallOptions& options = {}, Site site = Site::current());
  Batch& GatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, int root, const CallOptions& options = {},
                 Site site = Site::current());
  Batch& ScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, int root, const CallOptions& options = {},
                  Site site = Site::current());
  Batch& AllGatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, const CallOptions& options = {},
                    Site site = Site::current());
  Batch& ReduceScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, ReduceOp op,
                        const CallOptions& options = {}, Site site = Site::current());
  Batch& AllToAllV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, const BlockLayout& out_blocks,
                   const CallOptions& options = {}, Site site = Site::current());
  Batch& Send(ConstBuffer in, int peer, const CallOptions& options = {}, Site site = Site::current());
  Batch& Recv(Buffer out, int peer, const CallOptions& options = {}, Site site = Site::current());

  // The number of calls added so far.
  size_t size() const { return used_; }
  // Starts all calls, without waiting, on the calling thread. The Work is done when all of them are. Its status is OK
  // or that of the first call that failed. A batch of no calls is done at once. After a batch of some shape has been
  // submitted and waited for, the next of that shape allocates nothing.
  [[nodiscard]] Work Submit();

 private:
  Batch& Add(const CallArguments& arguments, const CallOptions& options, const BlockLayout& in_blocks = {},
             const BlockLayout& out_blocks = {});

  Communicator& communicator_;
  std::vector<BatchedCall> calls_;  // entries from `used_` on are kept for their memory
  size_t used_ = 0;
};

}  // namespace cohort::comm
