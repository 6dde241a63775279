// The collective calls of the trainer: those of comm::Communicator, in one place so that they can be counted
// (communication_ledger.h), timed (communication_timer.h) and observed (call_observer.h).
#pragma once

#include <chrono>
#include <source_location>
#include <span>

#include "cohort/comm/communicator.h"
#include "cohort/trainer/transfer/call_observer.h"

namespace cohort::trainer {

// The time limit of the process's collectives below that name none, those of wrappers and optimizers among them. It is
// ten minutes until it is set (Job sets it). Any thread may call both. Calls that have begun keep theirs.
// set_default_timeout throws c10::Error for a timeout that is not positive.
void set_default_timeout(std::chrono::nanoseconds timeout);
std::chrono::nanoseconds default_timeout();

// The tag (comm::CallOptions::tag) of a call for part `part`, a bucket or a unit counted from 0, in iteration
// `iteration`. Ranks whose calls are for other parts or iterations get an error, though all sizes are equal. The error
// says "tag <iteration>/<part + 1>".
constexpr uint64_t CallTag(uint64_t iteration, int64_t part) {
  return iteration << 32 | static_cast<uint32_t>(part + 1);
}

// Start the operations of comm::Communicator of the same name on `group`, without blocking. They fail the group when
// they are not done in time: CallOptions::timeout if options are given, otherwise default_timeout(). On device memory,
// if CallOptions::stream is null, they come after all work queued on the calling thread's current stream
// (device_stream.h). `tag` is CallOptions::tag.
runtime::Work AllReduce(comm::Communicator& group, comm::ConstBuffer in, comm::Buffer out, comm::ReduceOp op,
                        uint64_t tag = 0, std::source_location site = std::source_location::current());
runtime::Work Broadcast(comm::Communicator& group, comm::Buffer buffer, int root,
                        std::source_location site = std::source_location::current());
runtime::Work AllGather(comm::Communicator& group, comm::ConstBuffer in, comm::Buffer out,
                        const comm::CallOptions& options = {.timeout = default_timeout()},
                        std::source_location site = std::source_location::current());
// Several all-gathers, started as one (comm/batch.h). The Work is done when all are. None depends on another's result.
// A simulated link takes its latency once for all of them.
runtime::Work AllGathers(comm::Communicator& group, std::span<const CallBuffers> calls, uint64_t tag = 0,
                         std::source_location site = std::source_location::current());
runtime::Work AllGatherV(comm::Communicator& group, comm::ConstBuffer in, comm::Buffer out,
                         const comm::BlockLayout& blocks,
                         const comm::CallOptions& options = {.timeout = default_timeout()},
                         std::source_location site = std::source_location::current());
runtime::Work ReduceScatter(comm::Communicator& group, comm::ConstBuffer in, comm::Buffer out, comm::ReduceOp op,
                            uint64_t tag = 0, std::source_location site = std::source_location::current());
runtime::Work ReduceScatterV(comm::Communicator& group, comm::ConstBuffer in, const comm::BlockLayout& blocks,
                             comm::Buffer out, comm::ReduceOp op, uint64_t tag = 0,
                             std::source_location site = std::source_location::current());
runtime::Work AllToAll(comm::Communicator& group, comm::ConstBuffer in, comm::Buffer out,
                       std::source_location site = std::source_location::current());
runtime::Work AllToAllV(comm::Communicator& group, comm::ConstBuffer in, const comm::BlockLayout& in_blocks,
                        comm::Buffer out, const comm::BlockLayout& out_blocks,
                        std::source_location site = std::source_location::current());

// Point to point, in the order of calls for each pair and direction. The ledger counts a message's bytes where it is
// sent.
runtime::Work Send(comm::Communicator& group, comm::ConstBuffer in, int peer, uint64_t tag = 0,
                   std::source_location site = std::source_location::current());
runtime::Work Recv(comm::Communicator& group, comm::Buffer out, int peer, uint64_t tag = 0,
                   std::source_location site = std::source_location::current());

// One side of a message: `in` goes to `peer`, or `out` comes from it. The other buffer is left as it is here.
struct Message {
  int peer = 0;
  comm::ConstBuffer in = {};
  comm::Buffer out = {};
  bool sends = false;
  uint64_t tag = 0;  // CallOptions::tag
};
// Several messages, started as one (comm/batch.h). The Work is done when all are. They never wait for each other, in
// any order: two ranks that send to each other in an exchange each can't stand still, also where a send waits for its
// receiver.
runtime::Work Exchange(comm::Communicator& group, std::span<const Message> messages,
                       std::source_location site = std::source_location::current());

}  // namespace cohort::trainer
