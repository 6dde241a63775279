// The runner executes one rank's plan over links. It is the hot path of every collective that is not NCCL's: no virtual
// call but the transport's one per step, no allocation once a plan of that shape has run, no clock.
//
// Order within a lane is the plan's (comm/plan/plan.h). Sends and publishes are posted at their turn and tried again at
// every Advance until they are done; everything else is finished before the next step starts. A step of zero bytes is
// still a message, so that the two calls are compared even when there is nothing to move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/plan/plan.h"
#include "cohort/comm/request.h"
#include "cohort/comm/run/direct_steps.h"
#include "cohort/comm/run/early_receives.h"
#include "cohort/comm/run/plan_binding.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// Where the runner gets its links from: the group. Called once per (lane, peer); links stay until Reset.
class LinkSource {
 public:
  virtual ~LinkSource() = default;
  virtual absl::StatusOr<std::unique_ptr<Link>> MakeLink(int peer, uint16_t lane) = 0;
  // Null where the group has no fan-out: publishes then go as sends. Every member must get the same kind of answer.
  virtual absl::StatusOr<std::unique_ptr<Fanout>> MakeFanout(uint16_t lane) = 0;
};

class PlanRunner {
 public:
  // `source` outlives the runner. The group has `size` ranks, the caller is `rank`.
  PlanRunner(LinkSource* source, int rank, int size);
  ~PlanRunner();
  PlanRunner(const PlanRunner&) = delete;
  PlanRunner& operator=(const PlanRunner&) = delete;

  // Begins an operation; the previous one is done. `plan` must stay valid until this one is. False: there is no memory
  // for the plan's scratch; see failure().
  [[nodiscard]] bool Start(const Plan& plan, const PlanBinding& binding);
  // Publishes what the plan begins with, if it does, and if that is one write. Before the first Advance, which wakes
  // the readers.
  void PublishFirst();
  // Moves what can be moved, boundedly. kDone: the result is in place and the buffers may be reused. kFailed: see
  // failure(); the runner must be Reset.
  Progress Advance();
  // After kDone: the plan was given up at its kOpen, as on all other members, and nothing was moved. The operation goes
  // on with the plan that they all choose instead.
  bool diverted() const { return direct_.diverted(); }
  // Whether the plan's reductions are averages already where averages are wanted (PlanBinding::fold).
  bool divides() const { return direct_.in_use() && !direct_.diverted(); }
  const RunnerFailure& failure() const { return failure_; }
  // Group ranks that the operation is waiting for, ascending; for messages to people.
  std::vector<int> WaitingFor() const;
  // Destroys all links and fan-outs: what is under way is abandoned.
  void Reset();

 private:
  // A posted send or publish. Slots are reused; the address is stable while a message is under way.
  struct SendSlot {
    SendOperation operation;
    Link* link = nullptr;      // or
    Fanout* fanout = nullptr;  // (a publish)
    int32_t peer = -1;
    int32_t index = 0;  // which of the lane's sends and publishes, in steps
    bool done = false;
  };
  struct LaneState {
    const Step* cursor = nullptr;
    const Step* end = nullptr;
    uint16_t lane = 0;
    bool receiving = false;  // `receive` is under way for the step at the cursor
    size_t local_moved = 0;  // bytes of a local step already done
    int32_t posted = 0;      // sends and publishes begun
    uint32_t head = 0;       // first slot that is not done
    uint32_t tail = 0;       // one past the last slot in use
    std::vector<std::unique_ptr<SendSlot>> slots;
    RecvOperation receive;
    const Step* scanned = nullptr;             // receives before this one are under way, or not to be tried early
    std::unique_ptr<EarlyReceives> early;      // made when first needed
    std::vector<std::byte> incoming;           // what a user's function combines
    std::vector<std::unique_ptr<Link>> links;  // by peer, made when first needed
    std::unique_ptr<Fanout> fanout;
    bool fanout_asked = false;
  };
  struct Range {
    std::byte* data;
    size_t bytes;
  };

  size_t OffsetOf(uint32_t chunk) const { return binding_.OffsetOf(chunk, pieces_); }
  Range Bind(const Slice& slice) const;
  Range BindUnequal(const Slice& slice) const;
  // Lays the scratch of a plan of unequal blocks out; returns its bytes.
  size_t PlaceUnequalScratch();
  // The bytes of the scratch of a plan of equal blocks.
  size_t EqualScratch() const;
  void NoteMismatch(const RecvOperation& operation);
  int32_t CompletedSends(const LaneState& lane) const;

  SendSlot& NextSlot(LaneState& lane, const Range& range, Link* link, Fanout* fanout, int peer);
  static void Keep(LaneState& lane, const SendSlot& slot);

  // Each returns false when the operation has failed.
  bool TrySends(LaneState& lane, bool* moved);
  bool RunSteps(LaneState& lane, bool* moved);
  bool Post(LaneState& lane, const Step& step, bool* moved);
  bool PostTo(LaneState& lane, const Range& range, Link* link, Fanout* fanout, int peer, bool* moved);
  bool TrySlot(SendSlot& slot, bool* moved);
  bool Settle(SendSlot& slot, Progress progress, bool* moved);
  Progress Receive(LaneState& lane, const Step& step);
  void FillReceive(LaneState& lane, const Step& step, RecvOperation* operation);
  // What has become of a receive that was tried.
  Progress Received(LaneState& lane, const Step& step, RecvOperation& operation, Progress progress);
  // Tries the receives after the cursor, those under way and those that may begin.
  bool ReceiveEarly(LaneState& lane, bool* moved);
  bool BeginEarly(LaneState& lane, const Step& step, Link& link, bool* moved);
  Progress RunLocal(LaneState& lane, const Step& step);
  Progress RunDirect(LaneState& lane, const Step& step);
  // dst = a op b for whole elements.
  // False, and the failure, where the user's function has thrown.
  bool Combine(std::byte* dst, const std::byte* a, const std::byte* b, size_t bytes);
  // The rest of a kRecvReduce whose operand has come, where the op is a user's.
  bool CombineReceived(LaneState& lane, const Step& step);
  Link* LinkTo(LaneState& lane, int peer);       // null: failed
  bool FanoutOf(LaneState& lane, Fanout** out);  // null: there is none
  void Fail(absl::Status status, int peer);

  LinkSource* source_;
  int rank_;
  int size_;
  const Plan* plan_ = nullptr;
  PlanBinding binding_;
  uint32_t pieces_ = 1;  // 0: the blocks are unequal
  size_t lanes_in_use_ = 0;
  std::vector<std::unique_ptr<LaneState>> lanes_;
  std::unique_ptr<std::byte[]> scratch_;
  size_t scratch_bytes_ = 0;
  std::byte* buffers_[3] = {};
  // Unequal blocks, by buffer and block, in elements.
  const int64_t* counts_[3] = {};
  const int64_t* places_[3] = {};
  std::vector<int64_t> scratch_counts_;
  std::vector<int64_t> scratch_places_;
  Fanout* unwoken_ = nullptr;  // has published quietly
  bool failed_ = false;        // failure_ says why
  DirectSteps direct_;
  RunnerFailure failure_;
};

}  // namespace cohort::comm
