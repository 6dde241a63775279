// Communicator: an immutable, ordered group of ranks and the collective operations among them.
//
// Calls. Every operation is asynchronous: it returns a Work, which has already failed if the call was refused. All
// members must call the same operations in the same order. A call that differs from its peers' in kind, type, count,
// op, root, tag or algorithm fails the group, on every member, with an error that names both calls.
//
// Progress. Wait() on a Work drives progress in the calling thread. Operations also progress while any other thread
// waits, or with RuntimeOptions::progress_thread. Once a call is complete on this rank, peers on this host complete
// theirs without it. Peers on other hosts may still need it: the last bytes can lie in this process until it makes
// progress again, in any call or Wait, in the progress thread or in Runtime::Finalize.
//
// Failures are sticky. After one, every pending and later Work of the group completes with the first error. A Work that
// was complete before stays OK, as does the Work of a rank whose part was over; its rank gets the error at its next
// call. A call that was refused before anything was sent is no failure: the group goes on.
//
// Threads. One thread at a time uses a Communicator; different threads may use different ones. Nothing checks it: the
// calls of two threads begin in an order that nobody controls, so they may differ from their peers' calls and fail the
// group. A Wait uses its Work alone, so another thread may wait while this one makes calls. A child that is forked
// later can't use a Communicator: its calls are refused. The child must end by exec or _exit, since destructors wait
// for threads that it lacks.
//
// Buffers belong to the caller. They must stay valid, and inputs unchanged, until the Work is done. The destructor ends
// a Work that is pending, and its buffers with it. Options are copied, except the object behind CallOptions::user_op.
// Counts are numbers of elements. A count of 0 is legal everywhere, with a null pointer too. No buffer of a call has
// more than 2^56 bytes. The default argument `site` is the place of the call, for messages.
//
// In place works as in NCCL; all other overlaps are refused:
//
//   all-reduce, broadcast, reduce, all-to-all   out == in
//   all-gather, gather (root)                   in == out + rank * count
//   reduce-scatter, scatter (root)              out == in + rank * count
//
// Errors that all operations share. The group goes on after the first two, and fails with the others:
//
//   kInvalidArgument     the caller's arguments are wrong; decided locally, nothing was sent
//   kUnimplemented       nothing can serve this call (names the remedy)
//   kFailedPrecondition  the members' calls do not match or wait for each other (names them), or Runtime::Finalize has
//                        been called. The group goes on where a call is refused: in a forked child, or by a batch. A
//                        refusal at the launch on a CUDA device (captures, staging) ends a group of several ranks
//   kDataLoss            under --check: an input is not finite, or results differ (names rank and call)
//   kUnavailable         a member died or ended (names it)
//   kDeadlineExceeded    the timeout passed (names who is absent)
//   kAborted             a member called Abort, or destroyed its communicator amid a call (names it)
//   kCancelled           this rank destroyed the communicator amid the call
//   kResourceExhausted   no memory, or no room in the segment
//   kInternal            a function of the program threw, or a peer's data are damaged
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
  // Restricts transports by name ("shm,tcp"). Empty: as COHORT_TRANSPORTS says. For tests and measurements.
  std::string transports = {};
  // Figures and rules for the choice of algorithms, in the grammar of comm/select/tuning.h. They come on top of those
  // of COHORT_TUNING. Must be equal on all ranks: calls of ranks whose tables differ fail as mismatches.
  std::string tuning = {};
  // Default determinism level for reductions. `CallOptions::determinism` overrides it. Derived groups inherit it. Must
  // be equal on all members.
  Determinism determinism = Determinism::kFast;
};

class Communicator {
 public:
  // Makes the group of all ranks of `runtime`, which must outlive it. Collective, but local: it waits for no peer.
  // kInvalidArgument: options or COHORT_TUNING can't be read. Transports that don't exist or don't reach a member are
  // reported by the first call that needs them (kUnimplemented).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Communicator>> World(runtime::Runtime& runtime,
                                                                           const CommunicatorOptions& options = {});
  // Waits for no peer. Finish operations first: pending works complete with kCancelled, and the group fails on its
  // other members with kAborted, which names this rank. Private buffers may be reused at once; window.h says what may
  // still be stored into windows. Must not be called from within a callback of one of the communicator's own works.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;  // in this group
  int size() const;
  uint64_t id() const;
  // World ranks of the members, in the order of group ranks.
  const std::vector<int>& members() const;
  // OK, or the sticky error.
  absl::Status status() const;

  using Site = std::source_location;

  // out[i] = op over all ranks of in[i]. in.count == out.count elements.
  Work AllReduce(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options = {}, Site site = Site::current());
  // Like AllReduce, but writes only root's out. Elsewhere out may be empty.
  Work Reduce(ConstBuffer in, Buffer out, ReduceOp op, int root, const CallOptions& options = {},
              Site site = Site::current());
  // Copies root's buffer into everyone's.
  Work Broadcast(Buffer buffer, int root, const CallOptions& options = {}, Site site = Site::current());
  // out at root is [size * in.count], with rank r's in at r * in.count. Elsewhere out may be empty.
  Work Gather(ConstBuffer in, Buffer out, int root, const CallOptions& options = {}, Site site = Site::current());
  // in at root is [size * out.count]. Rank r gets the elements from r * out.count on. Elsewhere in may be empty.
  Work Scatter(ConstBuffer in, Buffer out, int root, const CallOptions& options = {}, Site site = Site::current());
  // out is [size * in.count] on every rank.
  Work AllGather(ConstBuffer in, Buffer out, const CallOptions& options = {}, Site site = Site::current());
  // in is [size * out.count]. Rank r gets block r of the elementwise op.
  Work ReduceScatter(ConstBuffer in, Buffer out, ReduceOp op, const CallOptions& options = {},
                     Site site = Site::current());
  // in and out are [size * count]: block s of rank r's in becomes block r of rank s's out.
  Work AllToAll(ConstBuffer in, Buffer out, const CallOptions& options = {}, Site site = Site::current());
  // The variable-count forms. The block of rank r has counts[r] elements from displacements[r] on, counted in elements
  // from the buffer's start (comm/request.h). A count of 0 is legal. Blocks of `out` must not overlap. in and out must
  // not overlap either, except in place: the caller's own block at the same address in both (all-to-all: in == out and
  // equal layouts).
  //
  // Every message carries its length. Where two ranks disagree on the count between them, the receiver finds out: the
  // group fails with kFailedPrecondition and both numbers, on all ranks.
  //
  // In CUDA memory NCCL carries no lengths. AllGatherV and ReduceScatterV, whose counts all members know, are compared
  // once they stand still. In the others, counts that differ make the call stand still until its timeout, or leave
  // wrong data behind.
  //
  // Root's out receives rank r's in, counts[r] elements. Only root's layout is read: root knows all counts, every other
  // rank its own.
  Work GatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, int root, const CallOptions& options = {},
               Site site = Site::current());
  // Rank r gets counts[r] elements of root's in. Only root's layout is read.
  Work ScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, int root, const CallOptions& options = {},
                Site site = Site::current());
  // Everyone's out receives rank r's in, counts[r] elements. Counts are equal on all ranks; displacements are local.
  Work AllGatherV(ConstBuffer in, Buffer out, const BlockLayout& out_blocks, const CallOptions& options = {},
                  Site site = Site::current());
  // Rank r gets its block of the elementwise op, counts[r] elements. Counts are equal on all ranks.
  Work ReduceScatterV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, ReduceOp op,
                      const CallOptions& options = {}, Site site = Site::current());
  // Block s of rank r's in becomes block r of rank s's out. Every rank knows the counts of its own blocks.
  Work AllToAllV(ConstBuffer in, const BlockLayout& in_blocks, Buffer out, const BlockLayout& out_blocks,
                 const CallOptions& options = {}, Site site = Site::current());
  // Completes on no rank before every rank has called it.
  Work Barrier(const CallOptions& options = {}, Site site = Site::current());
  // Messages are ordered per pair and direction, on channels of their own, independent of collectives. Any number may
  // be under way; the queues of the peers take turns. `peer` may be the caller itself (host memory). A Work that is
  // dropped goes on by itself.
  //
  // Counts and types of both sides must agree. Where they don't, the Recv fails with kFailedPrecondition, which names
  // both calls, and with it the group on all members. Nothing is cut off or filled up. A Send that was done before
  // stays OK; small messages wait for nobody. In CUDA memory nobody finds out: the call stands still until its timeout,
  // or leaves wrong data behind.
  Work Send(ConstBuffer in, int peer, const CallOptions& options = {}, Site site = Site::current());
  Work Recv(Buffer out, int peer, const CallOptions& options = {}, Site site = Site::current());

  // Ranks with equal color form a group, ordered by (key, rank). With color < 0 a rank gets no group (null).
  // Collective. Blocks, for at most ten minutes. Errors: those of AllGather.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key, Site site = Site::current());
  // Makes the group of the given group ranks, in that order. Only its members call, with equal lists. Local: it waits
  // for nobody. Repeated calls with equal lists give different groups, provided that all members repeat them equally
  // often. kInvalidArgument: the list holds a number that is no rank of the group, holds one twice, or lacks the
  // caller.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> Subgroup(std::span<const int> ranks);

  // Allocates memory that all ranks of this host map, so that collectives move every byte once. `bytes` may differ
  // between ranks and may be 0. window.h says how long the memory lives. Collective. Blocks until all members have
  // mapped each other's. kResourceExhausted on all members when one has no room: nothing is kept, and the group goes
  // on.
  //
  // Algorithms are chosen before anybody knows where the buffers of a call lie. From its first window on a group
  // chooses what is fast in windows; before, what is fast in private memory. So allocate a window on the group whose
  // calls it is for. A program with many calls of both kinds gives each kind a communicator (Duplicate). Groups made
  // from this one begin without windows.
  [[nodiscard]] absl::StatusOr<Window> AllocateWindow(size_t bytes, const CallOptions& options = {},
                                                      Site site = Site::current());

  // Makes a group of the same members, whose operations are independent of this one's. Local, as Subgroup is.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> Duplicate();
  // Makes device group `index`: the same members, each with its index-th device (Runtime::devices). With one such group
  // per device, a rank's devices communicate independently. Local. All members make it, in any order. kInvalidArgument:
  // the ranks own fewer devices.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> DeviceGroup(int index);
  // Makes the group of the survivors, in the same order, after a rank has died (dlaunch --on-failure continue).
  // Collective among the survivors, whatever state the group is in. Blocks until all of them have called it. All get
  // the same members, even when they learn deaths in different orders or more ranks die meanwhile. A rank that dies
  // later is lost to the new group in turn: shrink that one. A failed group stays failed, and none of its messages
  // reaches the new one. comm/REFERENCE.md has the loop that continues.
  //
  //   kDeadlineExceeded    a survivor has not called (names it); the caller may try again and meets who is late
  //   kUnavailable         a member can't be reached but is not known to be dead: it ended in order, or runs on another
  //                        host without dlaunch
  //   kFailedPrecondition  a forked child, or the runtime has been finalized
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Communicator>> Shrink(
      std::chrono::nanoseconds timeout = std::chrono::minutes(1), Site site = Site::current());

  // Makes CUDA memory known to NCCL, which then moves it without copies of its own where it can. NCCL registers memory
  // since 2.19, and symmetric windows of ncclMemAlloc's memory since 2.27; with an older library nothing happens. The
  // memory must outlive this communicator. Collective, with equal sizes: all members register the buffer that they will
  // use in the same calls. Blocks as the first call on a device does. kInvalidArgument for host memory.
  [[nodiscard]] absl::Status RegisterDeviceMemory(const Buffer& buffer,
                                                  std::chrono::nanoseconds timeout = std::chrono::minutes(1));

  // Says for people how this call would be served: provider, algorithm, predicted time, runner-up; or why it can't be.
  // Local.
  std::string Explain(CollectiveKind kind, int64_t count, DataType dtype, MemoryKind memory = MemoryKind::kHost) const;

  // Returns the table that choices are made with, in the grammar of comm/select/tuning.h.
  std::string tuning() const;
  // Makes all members use rank 0's table from here on; groups made from this one later inherit it. Collective. Blocks,
  // with the default timeout. No call of this group may be under way. `text` is read on rank 0 only. kInvalidArgument
  // on all members when it can't be parsed.
  [[nodiscard]] absl::Status SetTuning(const std::string& text, Site site = Site::current());

  // Fails the group here and on its other members with kAborted, unless it has failed already. Does not wait for the
  // others. Does nothing in a forked child.
  void Abort(const std::string& reason);

 private:
  friend class Batch;
  friend Group& GroupOf(Communicator& communicator);
  friend absl::StatusOr<std::string> Calibrate(Communicator& group);
  explicit Communicator(std::unique_ptr<Group> group);
  absl::StatusOr<std::unique_ptr<Communicator>> Derive(uint64_t tag);
  std::unique_ptr<Group> group_;
};

// Measures latencies and rates between rank 0 and its nearest peers, on its own host and on another. Scales the figures
// of the cost model that are more than twofold off the built-in ones (comm/select/calibration.h), and makes every
// member use them (SetTuning); rules stay as they are. Returns the table, in the grammar of comm/select/tuning.h, so
// that it can be kept and given back by COHORT_TUNING.
//
// Collective. Blocks for less than a second on an idle machine. On a busy one, figures that can't be true stay as they
// were, and rank 0 says so on its standard error output. Errors: those of Send, Recv and Barrier.
[[nodiscard]] absl::StatusOr<std::string> Calibrate(Communicator& group);

}  // namespace cohort::comm
