// Communicator: an immutable, ordered group of ranks and the collective operations among them.
//
// Every operation is asynchronous: it returns a Work (already failed if it was refused) and is complete when the Work
// is done. Wait() on the Work drives progress in the calling thread; with RuntimeOptions::progress_thread, or while any
// other thread waits, operations progress in the background too. All members must call the same operations in the same
// order; a call that differs in kind, type, count, op, root or algorithm from its peers' fails the group with an error
// that names both calls, on every member. Errors are sticky: after a failure every pending and later Work of the group
// completes with the first error. A Work that was complete before stays OK, as does that of a root whose part was over:
// its rank hears of the failure at what it does next.
//
// A Communicator is used by one thread at a time; different communicators by different threads. A child that is forked
// later can't use it: its calls are refused. It ends by exec or _exit, since destructors wait for threads it lacks.
//
// Buffers belong to the caller and must stay valid (inputs: unchanged) until the Work is done; options are copied, but
// for what CallOptions::user_op points to. Counts are elements. A count of 0 is legal everywhere, also with a null
// pointer; no buffer of a call has more than 2^56 bytes. Callers pass no `site`: it is the place of the call, for
// messages. In place as in NCCL: all-reduce, broadcast, reduce: out == in; all-gather:
// in == out + rank * count; reduce-scatter: out == in + rank * count; gather (root): in == out + rank * count; scatter
// (root): out == in + rank * count; all-to-all: out == in. Other overlaps are refused.
//
// Errors common to all operations: kInvalidArgument (caller's arguments, decided locally, nothing sent),
// kFailedPrecondition (calls of the members do not match; names them; or Runtime::Finalize has been called),
// kUnavailable (a member died; names it), kDeadlineExceeded (CallOptions::timeout; names who is absent), kUnimplemented
// (nothing can serve this, with the remedy), kAborted (Abort was called).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/request.h"
#include "cohort/comm/types.h"
#include "cohort/comm/window.h"
#include "cohort/runtime/engine/work.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm {

using runtime::Deadline;
using runtime::Work;

class Group;

struct CommunicatorOptions {
  // Restricts transports by name ("shm,ucx"); empty: all that fit. For tests and measurements.
  std::string transports = {};
  // Figures and rules for the choice of algorithms, in the grammar of comm/select/tuning.h, on top of COHORT_TUNING's.
  // Equal on all ranks; calls of ranks whose tables differ fail as mismatches.
  std::string tuning = {};
  // Of reductions whose CallOptions say nothing else; groups made from this one inherit it. Equal on all members.
  Determinism determinism = Determinism::kFast;
};

class Communicator {
 public:
  // The group of all ranks of `runtime`, which must outlive it. Collective, but local: does not talk to peers.
  // kInvalidArgument: options or COHORT_TUNING can't be read. Transports that don't exist or don't reach somebody are
  // told of by the first call that needs them (kUnimplemented).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Communicator>> World(runtime::Runtime& runtime,
                                                                           const CommunicatorOptions& options = {});
  // Waits for no peer: pending works complete with kCancelled. Peers are not told; finish operations first. Not from
  // within a callback of one of its own works.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;  // in this group
  int size() const;
  uint64_t id() const;
  // World ranks of the members, in group-rank order.
  const std::vector<int>& members() const;
  // OK, or the sticky error.
  absl::Status status() const;

  using Site = std::source_location;

  // out[i] = op over all ranks of in[i]. in.count == out.count elements.
  Work AllReduce(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options = {}, Site site = Site::current());
  // Like AllReduce, but only root's out is written; elsewhere out may be empty.
  Work Reduce(ConstBuffer in, Buffer out, ReduceOp op, int root, const CallOptions& options = {},
              Site site = Site::current());
  // Root's buffer is copied into everyone's.
  Work Broadcast(Buffer buffer, int root, const CallOptions& options = {}, Site site = Site::current());
  // out at root is [size * in.count]: rank r's in at r * in.count. Elsewhere out may be empty.
  Work Gather(ConstBuffer in, Buffer out, int root, const CallOptions& options = {}, Site site = Site::current());
  // in at root is [size * out.count]: rank r gets the elements from r * out.count. Elsewhere in may be empty.
  Work Scatter(ConstBuffer in, Buffer out, int root, const CallOptions& options = {}, Site site = Site::current());
  // out is [size * in.count] on every rank.
  Work AllGather(ConstBuffer in, Buffer out, const CallOptions& options = {}, Site site = Site::current());
  // in is [size * out.count]; rank r gets block r of the elementwise op.
  Work ReduceScatter(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options = {},
                     Site site = Site::current());
  // in and out are [size * count]: block s of rank r's in becomes block r of rank s's out.
  Work AllToAll(ConstBuffer in, Buffer out, const CallOptions& options = {}, Site site = Site::current());
  // The variable-count forms: the block of rank r has counts[r] elements from displacements[r] on, in elements from the
  // buffer's start (comm/request.h). A count of 0 is legal, everywhere. Blocks of `out` may not overlap, nor may in and
  // out but in place: the caller's own block at the same address in both (all-to-all: in == out and equal layouts).
  // Every message tells its length: where two ranks disagree on the count between them the receiver finds out, and the
  // group fails with kFailedPrecondition and both numbers, on all ranks; a rank whose own messages had all come hears
  // of it at what it does next. Not so in CUDA memory, where NCCL tells no lengths: AllGatherV and ReduceScatterV,
  // whose counts all members know, are compared when they stand still; of the others, counts that differ between two
  // ranks make the call stand still until its timeout, or leave wrong data behind.
  //
  // Root cuts out: rank r's in, of counts[r] elements. Only root's layout is read; it knows all counts, others theirs.
  Work GatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, int root, const CallOptions& options = {},
               Site site = Site::current());
  // Root cuts in: rank r gets counts[r] elements. Only root's layout is read.
  Work ScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, int root, const CallOptions& options = {},
                Site site = Site::current());
  // Everyone cuts out: rank r's in, of counts[r] elements. Equal counts on all ranks; displacements are local.
  Work AllGatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, const CallOptions& options = {},
                  Site site = Site::current());
  // Everyone cuts in: rank r gets its block of the elementwise op, counts[r] elements. Equal counts on all ranks.
  Work ReduceScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, ReduceOp op,
                      const CallOptions& options = {}, Site site = Site::current());
  // Block s of rank r's in becomes block r of rank s's out. Every rank knows the counts of its own blocks.
  Work AllToAllV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, const BlockLayout& out_blocks,
                 const CallOptions& options = {}, Site site = Site::current());
  // Done on no rank before every rank has called it.
  Work Barrier(const CallOptions& options = {}, Site site = Site::current());
  // Ordered per pair and direction, on channels of their own: independent of collectives. Counts and types must agree.
  // Where they don't, the receiver finds out: its Recv fails with kFailedPrecondition that names both calls, nothing is
  // cut off or filled up, and with it the group fails on all members. A Send that was done before (a small message
  // waits for nobody) stays OK: its rank hears of it at what it does next. In CUDA memory nobody finds out: as of the
  // variable-count forms, the call stands still until its timeout, or leaves wrong data behind. A Work that is dropped
  // goes on by itself.
  // `peer` may be the caller itself (host memory). Any number may be under way; the queues of the peers take turns.
  Work Send(ConstBuffer in, int peer, const CallOptions& options = {}, Site site = Site::current());
  Work Recv(Buffer out, int peer, const CallOptions& options = {}, Site site = Site::current());

  // Ranks with equal color form a group, ordered by (key, rank). Collective: exchanges colors. color < 0: no group
  // (null). Blocks, for at most ten minutes. Errors: those of AllGather.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key, Site site = Site::current());
  // The group of the given group ranks, in that order. Called by its members only, with equal lists; local: talks to
  // nobody. Repeated calls with equal lists give different groups, as long as all members make them equally often.
  // kInvalidArgument: the list names no rank of the group, one twice, or not the caller.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> Subgroup(std::span<const int> ranks);

  // `bytes` bytes (its own number on every rank, 0 too) of memory that all ranks of this host map, so that collectives
  // move every byte once: see window.h for how long it lives. Collective; blocks until all members have mapped each
  // other's. kResourceExhausted on all members when one has no room: nothing is kept, and the group goes on.
  //
  // Algorithms are chosen before anybody knows where the buffers of a call lie. From its first window on a group
  // chooses what is quick in windows, until then, and for good where it never has one, what is quick in private memory.
  // So allocate a window on the group whose calls it is for, and where a program has many calls of either kind, give
  // each kind a communicator (Duplicate). Groups made from this one begin without.
  [[nodiscard]] absl::StatusOr<Window> AllocateWindow(size_t bytes, const CallOptions& options = {},
                                                      Site site = Site::current());

  // A group of the same members, whose operations are independent of this one's. Local, as Subgroup is.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> Duplicate();
  // Device group `index`: the same members, each with its index-th device (Runtime::devices). With one such group per
  // device, a rank's devices communicate independently of one another. Local; made by all members, in any order.
  // kInvalidArgument: the ranks own fewer devices.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> DeviceGroup(int index);
  // The group without its dead, in the same order, when a rank has died (dlaunch --on-failure continue). Collective
  // among the survivors, whatever state the group is in, and blocks until all of them have called it; all get the same
  // members, also when deaths are heard of in different orders or more ranks die meanwhile. A rank that dies later is
  // lost to the new group in turn: shrink that one. A group that has failed stays so, and none of its messages reaches
  // the new one. `site` is for black boxes and messages.
  // kDeadlineExceeded: a survivor, which is named, has not called (the caller may try again, and meets who is late);
  // kUnavailable: a member can't be reached, but is not known to be dead: it ended in order, or runs on another host,
  // without dlaunch; kFailedPrecondition: a forked child, or the runtime has been finalized.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> Shrink(
      std::chrono::nanoseconds timeout = std::chrono::minutes(1), Site site = Site::current());

  // Makes CUDA memory known to NCCL for the life of this communicator, which it must outlive: NCCL then moves it
  // without copies of its own where it can (registration since 2.19, symmetric windows since 2.27, for memory of
  // ncclMemAlloc); an older library is left alone. Collective, with equal sizes: all members register the buffer that
  // they will use in the same calls. Blocks as the first call on a device does. kInvalidArgument for host memory.
  [[nodiscard]] absl::Status RegisterDeviceMemory(const Buffer& buffer,
                                                  std::chrono::nanoseconds timeout = std::chrono::minutes(1));

  // What would serve this call and why, for people: provider, algorithm, predicted time, runner-up; or why nothing
  // does. Local.
  std::string Explain(CollectiveKind kind, int64_t count, DataType dtype, MemoryKind memory = MemoryKind::kHost) const;

  // The table that choices are made with, in the grammar of comm/select/tuning.h.
  std::string tuning() const;
  // All members use rank 0's table from here on, as do groups made from this one later. Collective; no call of this
  // group is under way. Blocks. Other ranks' `text` is not looked at. kInvalidArgument on all of them where rank 0's
  // can't be read.
  [[nodiscard]] absl::Status SetTuning(const std::string& text, Site site = Site::current());

  // Fails the group here and on its other members with kAborted, unless it has failed already. Tells the others
  // without waiting for them. Nothing in a forked child.
  void Abort(const std::string& reason);

 private:
  friend class Batch;
  friend class Group;
  friend absl::StatusOr<std::string> Calibrate(Communicator& group);
  explicit Communicator(std::unique_ptr<Group> group);
  absl::StatusOr<std::unique_ptr<Communicator>> Derive(uint64_t tag);
  std::unique_ptr<Group> group_;
};

// Measures latencies and rates between rank 0 and its nearest peers, on its own host and on another, scales the figures
// of the cost model by how far they are from those of the machine that the built-in figures were fitted to (more than
// twofold; see comm/select/calibration.h), and makes every member use them (SetTuning); rules stay as they are. Returns
// the table, in the grammar of comm/select/tuning.h, so that it can be kept and given back by COHORT_TUNING.
// Collective; blocks for less than a second where the machine is idle. Where it is not, figures that can't be true stay
// as they were, and rank 0 says so on its standard error output. Errors: those of Send, Recv and Barrier.
[[nodiscard]] absl::StatusOr<std::string> Calibrate(Communicator& group);

}  // namespace cohort::comm
