// A provider serves whole collective calls. `nccl` (CUDA memory) enqueues one NCCL call; `plan` (everything else) runs
// a plan over transports. Adding a provider is one folder and one line in providers.def.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/request.h"
#include "cohort/comm/select/tuning.h"
#include "cohort/runtime/engine/work.h"
#include "cohort/runtime/runtime.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

class BoundPlan;
struct PreparedCall;

// A provider's view of its group. The group outlives the provider. Only `tuning` and `windows` change (OnTuning).
struct GroupContext {
  uint64_t id = 0;
  uint32_t epoch = 0;
  int rank = 0;  // of the caller in the group
  int size = 1;
  std::vector<int> members;     // world ranks, by group rank
  std::vector<int> fails_with;  // world ranks whose loss fails the group as well, in order
  runtime::Runtime* runtime = nullptr;
  // Set in a group made by Shrink: the group that failed, and the group ranks there that this one lacks.
  uint64_t shrunk_from = 0;
  std::vector<int> lost;
  // The source that makes the group's progress; short waits poll it alone. Null where that is not enough: a transport
  // to other nodes must be polled, too.
  runtime::ProgressSource* source = nullptr;
  std::string transports;                        // CommunicatorOptions::transports
  Tuning tuning;                                 // for the choice of algorithms; equal on all members
  bool windows = false;                          // one was allocated on this group; equal on all members
  Determinism determinism = Determinism::kFast;  // of calls that say nothing else
  runtime::Checks checks;                        // of its calls; equal on all members
  // For a provider that has to wait inside Launch, BatchEnd, Register or OnSplit: drives the engine until `done`, which
  // any thread may ask, or the deadline; the result is done(). Other threads may have the engine meanwhile, unless it
  // is from inside it that the provider was called. Called with engine ownership.
  std::function<bool(const std::function<bool()>& done, runtime::Deadline deadline)> drive;
  // Fails the group here and tells its other members. blamed: a group rank, or -1. Called with engine ownership, by
  // providers that have found the failure themselves; ends in their Fail.
  std::function<void(const absl::Status& status, int blamed)> fail;
};

// How a call will be served.
struct ServicePlan {
  uint16_t algorithm = 0;  // AlgorithmInfo's id, for the signature; 0 where there is none
  int32_t pieces = 1;      // that the block is cut into
  // The algorithm that serves the call when members find out together that they can't reach each other's memory, or
  // that it would be slower. 0: none.
  uint16_t fallback = 0;
  int32_t fallback_pieces = 1;
  uint64_t tuning = 0;  // hash of the figures that the choice was made with; goes into the signature too
};

// A call as an operation holds it: numbered, in the black box. The prepared call that it was may be forgotten
// meanwhile.
struct AcceptedCall {
  CollectiveRequest request;
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  void* stream = nullptr;
  ServicePlan service;                 // what Choose returned
  std::shared_ptr<BlockTable> blocks;  // what request.blocks points to; otherwise kept for its memory
  runtime::CallRecord record;          // started
  std::shared_ptr<BoundPlan> plan;     // of the prepared call that it repeats; null: there is none
  bool begun = false;                  // the plan's cursor stands where an inline run of this call stopped
  uint64_t ticket = 0;                 // for BlackBoxWriter::Finish, which the provider calls when the call is done
  uint64_t like = 0;                   // the prepared call that the rest was filled from; 0: none
};

class Provider {
 public:
  virtual ~Provider() = default;
  virtual std::string_view name() const = 0;
  // How the call will be served, or why it can't be: kUnimplemented or kInvalidArgument, with the remedy. Pure in what
  // all members share (kind, count, dtype, op, root, memory kind, the group's topology, CallOptions::algorithm): every
  // member must decide alike.
  virtual absl::StatusOr<ServicePlan> Choose(const CollectiveRequest& request, const std::string& forced_algorithm) = 0;
  // Starts a prepared call, which is numbered. It may send what the call begins with: the caller then writes the record
  // of the call into the black box, while messages travel. Called with engine ownership, as Run.
  virtual void Start(PreparedCall& call, const void* in, void* out);
  // Runs the call that was just started, as far as it gets at once. It becomes an operation where it is not done then.
  // A Work that names no operation: it is done, and so is its record.
  virtual runtime::Work Run(PreparedCall& call);
  // Runs NextCall, which Start and Run fill for calls that are not begun in the caller's thread.
  virtual runtime::Work Launch(const AcceptedCall& call) = 0;
  // Calls launched between the two belong to one batch, and none of them may wait for another. What can't be started
  // at BatchEnd fails the group (GroupContext::fail). Called with engine ownership; never nested.
  virtual void BatchBegin() {}
  virtual void BatchEnd() {}
  // Does a bounded amount of work; true when anything moved.
  virtual bool Poll() = 0;
  // True while something is under way that only Poll can finish.
  virtual bool Active() const = 0;
  // The engine is about to sleep, for 50 ms at the most: asks for being woken (Engine::Kick) when Poll would move
  // something. The default's news come with Segment::Wake and the transports' descriptors.
  virtual void Arm() {}
  // Communicator::RegisterDeviceMemory. The default has nothing to gain from it.
  virtual absl::Status Register(const Buffer& buffer, runtime::Deadline deadline) {
    (void)buffer, (void)deadline;
    return absl::OkStatus();
  }
  // This group was split, and `child` is the caller's new group, of those with its `color`, in the order of `key`.
  // Called on all members, also where color < 0, which has no group. Called with engine ownership; may wait.
  virtual void OnSplit(int color, int key, uint64_t child) { (void)color, (void)key, (void)child; }
  // The group has failed: complete everything with `status`, bounded in time, and touch no user memory afterwards.
  virtual void Fail(const absl::Status& status) = 0;
  // The oldest call that is under way, for messages to people; null when there is none.
  virtual const runtime::CallRecord* Pending() const = 0;
  // Whether the group's collective of this number is under way here. A provider that reports no stall when a call's
  // time is over (Runtime::ReportStall) returns false.
  virtual bool WaitsIn(uint64_t sequence) const {
    (void)sequence;
    return false;
  }
  // Every member, between the same calls: GroupContext::tuning or windows have changed.
  virtual void OnTuning() {}
  // "ring (predicted 12.3 us; runner-up flat, 15.0 us)": what would serve a call, for people.
  virtual std::string Explain(const CollectiveRequest& request) = 0;

 protected:
  // The next operation, to be filled completely, posted, and launched: a call is too long to be copied for each. It may
  // still hold an earlier call.
  virtual AcceptedCall& NextCall() { return next_call_; }
  virtual void Post() {}
  // NextCall(), filled from a prepared call and its latest buffers; without a ticket.
  AcceptedCall& FillNextCall(const PreparedCall& prepared);

 private:
  AcceptedCall next_call_;
};

}  // namespace cohort::comm
