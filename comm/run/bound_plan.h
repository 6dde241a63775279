// A plan bound to a call: the places and lengths of its steps, the links that carry them, scratch memory, and how far
// the call has come. A call that repeats keeps its bound plan, so that a repetition finds all of this.
//
// Two executors move its cursors: InlineRun begins a call in the caller's thread, and PlanRunner goes on where that
// stopped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/plan/plan.h"
#include "cohort/comm/run/plan_binding.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm {

// The memory that a plan's slices name: the caller's buffers, and scratch of its own.
class BoundMemory {
 public:
  struct Range {
    std::byte* data;
    size_t bytes;
  };

  // Begins an operation; both outlive it. kResourceExhausted: there is no memory for the plan's scratch.
  absl::Status Bind(const Plan& plan, const PlanBinding& binding);
  // Other buffers for the next operation, whose lengths are the same.
  void SetBuffers(const void* in, void* out) {
    // Inputs are never written: the checker refuses plans that do.
    buffers_[0] = const_cast<std::byte*>(static_cast<const std::byte*>(in));
    buffers_[1] = static_cast<std::byte*>(out);
  }
  Range At(const Slice& slice) const;
  // True when the blocks have lengths of their own.
  bool unequal() const { return pieces_ == 0; }
  // By BufferId.
  std::byte* const* buffers() const { return buffers_; }
  size_t scratch_bytes() const { return scratch_bytes_; }

 private:
  size_t OffsetOf(uint32_t chunk) const { return binding_->OffsetOf(chunk, pieces_); }
  Range AtUnequal(const Slice& slice) const;
  // Lays the scratch of a plan of unequal blocks out; returns its bytes.
  size_t PlaceUnequalScratch();
  // The bytes of the scratch of a plan of equal blocks.
  size_t EqualScratch() const;

  const Plan* plan_ = nullptr;
  const PlanBinding* binding_ = nullptr;
  uint32_t pieces_ = 1;  // 0: the blocks are unequal
  std::byte* buffers_[3] = {};
  std::unique_ptr<std::byte[]> scratch_;
  size_t scratch_bytes_ = 0;
  // Unequal blocks, by buffer and block, in elements.
  const int64_t* counts_[3] = {};
  const int64_t* places_[3] = {};
  std::vector<int64_t> scratch_counts_;
  std::vector<int64_t> scratch_places_;
};

inline BoundMemory::Range BoundMemory::At(const Slice& slice) const {
  if (slice.chunks == 0) return {buffers_[static_cast<int>(slice.buffer)], 0};
  size_t begin;
  size_t end;
  if (pieces_ == 1) [[likely]] {
    const size_t chunk_bytes = binding_->count * binding_->element_bytes;
    begin = static_cast<size_t>(slice.first) * chunk_bytes;
    end = begin + static_cast<size_t>(slice.chunks) * chunk_bytes;
  } else if (pieces_ == 0) [[unlikely]] {
    return AtUnequal(slice);
  } else {
    begin = OffsetOf(static_cast<uint32_t>(slice.first));
    end = OffsetOf(static_cast<uint32_t>(slice.first + slice.chunks));
  }
  // A null buffer is legal where there is nothing in it, and must not be moved from null.
  std::byte* base = buffers_[static_cast<int>(slice.buffer)];
  return {end == begin ? base : base + begin, end - begin};
}

// A step of a plan; or one send of a publish that goes to every other member by itself, where there is no fan-out.
struct BoundStep {
  // A place in one of the call's buffers, in bytes.
  struct Place {
    BufferId buffer = BufferId::kIn;
    size_t offset = 0;
  };

  bool sends() const { return kind == StepKind::kSend || kind == StepKind::kPublish; }
  bool receives() const { return kind == StepKind::kRecv || kind == StepKind::kRecvReduce; }

  StepKind kind = StepKind::kCopy;
  bool ends_publish = true;  // false: more sends of the same publish follow
  int look_cost = 1;         // filled by InlineRun
  int32_t peer = -1;
  int32_t sends_before = 0;  // sends and publishes of the lane before this one
  size_t bytes = 0;          // of its message, or of what it writes
  Place src = {}, dst = {}, src2 = {};
  const Step* step = nullptr;
  Fanout* fanout = nullptr;  // carries the message; null: a link to `peer` does, if there is one
  Link* link = nullptr;      // found when it is first needed
};

// How far a message of a step has come. kFailed: in an inline run, and is not to be tried again.
enum class MessageState : uint8_t { kNone, kUnderWay, kDone, kFailed };

class BoundPlan {
 public:
  // The message of the step at the cursor, where an inline run has begun it and not finished: an operation goes on with
  // this very object, which the transport may know.
  struct BegunMessage {
    SendOperation send;                        // or
    RecvOperation receive;                     // by the kind of the step
    MessageState state = MessageState::kNone;  // never kDone
  };
  struct Lane {
    std::vector<BoundStep> steps;
    BoundStep* next = nullptr;  // the first that is not done
    BoundStep* end() { return steps.data() + steps.size(); }
  };

  BoundPlan() = default;
  // Its cursors point into itself.
  BoundPlan(const BoundPlan&) = delete;
  BoundPlan& operator=(const BoundPlan&) = delete;

  // Binds the plan, for the call that `binding` describes. `fanouts`: by lane, or null; they and the links outlive
  // this. kResourceExhausted: there is no memory for the plan's scratch.
  absl::Status Bind(std::shared_ptr<const Plan> plan, const PlanBinding& binding, std::span<Fanout* const> fanouts);
  // Begins another call on the same plan, with the same count and element size.
  void Begin(const PlanBinding& binding) {
    binding_ = binding;
    memory_.SetBuffers(binding.in, binding.out);
    begun_.state = MessageState::kNone;
    Rewind();
  }
  // The same, where only the buffers and the signature differ; without Rewind, and binding() keeps the buffers of
  // before.
  void SetCall(const void* in, void* out, const runtime::CallRecord* call) {
    memory_.SetBuffers(in, out);
    binding_.signature = call->wire_signature;
    binding_.call = call;
    begun_.state = MessageState::kNone;
  }
  void Rewind() {
    for (size_t i = 0; i < lanes(); ++i) lanes_[i].next = lanes_[i].steps.data();
  }
  // The record of the call under way has moved.
  void SetRecord(const runtime::CallRecord* call) { binding_.call = begun_.send.call = begun_.receive.call = call; }
  // Its links are gone: it must be bound again.
  void Forget() { plan_.reset(); }
  // Whether Begin does for that call.
  bool Fits(const Plan* plan, const PlanBinding& binding) const {
    return plan == plan_.get() && binding.blocks == nullptr && binding_.blocks == nullptr &&
           binding.count == binding_.count && binding.element_bytes == binding_.element_bytes;
  }

  // Null before Bind.
  const Plan* plan() const { return plan_.get(); }
  const PlanBinding& binding() const { return binding_; }
  const BoundMemory& memory() const { return memory_; }
  size_t lanes() const { return lane_count_; }
  Lane& lane(size_t i) { return lanes_[i]; }
  BegunMessage& begun() { return begun_; }
  std::byte* At(const BoundStep::Place& place) const {
    return memory_.buffers()[static_cast<size_t>(place.buffer)] + place.offset;
  }
  // The signature that a message carries. Where lengths differ by block it holds the length, too.
  uint64_t SignatureOf(const BoundStep& step) const {
    if (memory_.unequal()) [[unlikely]]
      return runtime::SignatureWithLength(binding_.signature, step.bytes);
    return binding_.signature;
  }

  // Makes the operation of a step's message new. A user's function is left to the caller.
  void Fill(const BoundStep& step, SendOperation* operation) const {
    operation->data = At(step.src);
    operation->bytes = step.bytes;
    operation->signature = SignatureOf(step);
    operation->call = binding_.call;
    operation->moved = 0;
    operation->state = nullptr;
  }
  void Fill(const BoundStep& step, RecvOperation* operation) const {
    operation->data = At(step.dst);
    operation->bytes = step.bytes;
    operation->element_bytes = binding_.element_bytes;
    operation->signature = SignatureOf(step);
    operation->call = binding_.call;
    operation->moved = 0;
    operation->state = nullptr;
    operation->mismatch = false;
    if (step.kind == StepKind::kRecvReduce) {
      operation->reduce = binding_.kernel;
      operation->operand = At(step.src);
      operation->incoming_first = step.step->incoming_first;
    } else {
      operation->reduce = nullptr;
      operation->operand = nullptr;
    }
  }

 private:
  void BindLane(const comm::Lane& lane, Fanout* fanout, Lane* bound);

  std::shared_ptr<const Plan> plan_;
  PlanBinding binding_;
  BoundMemory memory_;
  BegunMessage begun_;
  size_t lane_count_ = 0;    // of the plan
  std::vector<Lane> lanes_;  // at least those
};

}  // namespace cohort::comm
