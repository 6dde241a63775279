// The collective calls of the trainer: those of comm::Communicator, in one place so that a test can hold them back.
//
//   const DelayedCollectives delayed;
//   ... train: every transfer is now done as late as its contract allows ...
//
//             call                                   Wait
//   usually   ├── in is read, out is written ... ────┤   at some time in between
//   delayed   │ in is copied, out filled with 0xFF   ├── in as it was? out untouched? ── transfer ──┤
//
// A program that changes an input, gives its memory to something else, or uses an output before it has waited may be
// lucky for years. Here it fails: its Wait says which call of it was wronged and where, or it computes with 0xFF bytes,
// which are no number in every floating-point type and -1 in integers. (PyTorch's FSDP has had such bugs for months in
// which gradients were wrong without a word: research on them found that only delays before every collective show
// them.)
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <source_location>
#include <span>

#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// How long the process's collectives below have, those of the wrappers and optimizers among them, if they say nothing
// themselves: ten minutes, until it is set (Job does so). Any thread; calls that have begun keep theirs. The first
// throws c10::Error for a timeout that is not positive.
void set_default_timeout(std::chrono::nanoseconds timeout);
std::chrono::nanoseconds default_timeout();

// As the operations of comm::Communicator of the same name, on `group`; without options where none are taken. They fail
// the group when they are not done in time: in CallOptions::timeout where options are given, else in default_timeout().
// On device memory, where CallOptions::stream is null, they come after what is queued on the calling thread's current
// stream (device_stream.h).
runtime::Work AllReduce(comm::Communicator& group, comm::ConstBuffer in, comm::Buffer out, comm::ReduceOp op,
                        std::source_location site = std::source_location::current());
runtime::Work Broadcast(comm::Communicator& group, comm::Buffer buffer, int root,
                        std::source_location site = std::source_location::current());
runtime::Work AllGather(comm::Communicator& group, comm::ConstBuffer in, comm::Buffer out,
                        const comm::CallOptions& options = {.timeout = default_timeout()},
                        std::source_location site = std::source_location::current());
// Several all-gathers, started as one (comm/batch.h): the Work is done when all are. None depends on another's result.
// A simulated link takes its latency once for all of them.
struct CallBuffers {
  comm::ConstBuffer in;
  comm::Buffer out;
};
runtime::Work AllGathers(comm::Communicator& group, std::span<const CallBuffers> calls,
                         std::source_location site = std::source_location::current());
runtime::Work AllGatherV(comm::Communicator& group, comm::ConstBuffer in, comm::Buffer out,
                         const comm::BlockLayout& blocks,
                         const comm::CallOptions& options = {.timeout = default_timeout()},
                         std::source_location site = std::source_location::current());
runtime::Work ReduceScatter(comm::Communicator& group, comm::ConstBuffer in, comm::Buffer out, comm::ReduceOp op,
                            std::source_location site = std::source_location::current());
runtime::Work ReduceScatterV(comm::Communicator& group, comm::ConstBuffer in, const comm::BlockLayout& blocks,
                             comm::Buffer out, comm::ReduceOp op,
                             std::source_location site = std::source_location::current());

// While one lives, the functions above hold their transfers of host memory back, in all threads; CUDA memory moves as
// usual. A Wait first starts what its thread has called before, in that order, and nothing later. All ranks must do it
// alike, and call collectives of different groups in the same order, as the trainer does.
//
// Works fail with kFailedPrecondition when a buffer was reused too early; their group is aborted then, so that the
// other ranks hear of it.
class [[nodiscard]] DelayedCollectives {
 public:
  DelayedCollectives();
  // Starts what nobody has waited for.
  ~DelayedCollectives();
  DelayedCollectives(const DelayedCollectives&) = delete;
  DelayedCollectives& operator=(const DelayedCollectives&) = delete;

  // Collectives that were held back since this was made.
  int64_t calls() const;

 private:
  int64_t before_;
};

// Works of `group` that are held back complete with kCancelled: for owners of groups that go before their users do.
void CancelDelayed(const comm::Communicator& group);

}  // namespace cohort::trainer
