// The short way of a small call that repeats an earlier one: the steps of its plan, or the one step of a send or a
// receive, done with no operation, queue or Work. Where a message does not come soon, the call becomes an operation
// that goes on at the step where the short way stopped.
//
// Nothing fails here. Whatever is out of order (another signature, a damaged slot, a full stream) leaves the step
// undone, so that the operation meets it again and deals with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cohort/comm/plan/plan.h"
#include "cohort/comm/reduce/reduce_kernel.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/comm/types.h"
#include "cohort/runtime/engine/wait_policy.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// One remembered call of one group. By the engine's owner. Its senders and receivers belong to the group's links and
// outlive it.
class ShortCall {
 public:
  // A place in one of the call's buffers, in bytes.
  struct Place {
    BufferId buffer = BufferId::kIn;
    uint32_t offset = 0;
  };
  // A step with lengths and links resolved. A publish is a send, or one to each other rank where there is no fan-out.
  struct Step {
    enum class Kind : uint8_t { kSend, kReceive, kReceiveReduce, kReduce, kCopy } kind = Kind::kCopy;
    bool incoming_first = false;
    uint16_t part = 0;  // of the plan's step: which of its sends
    uint32_t bytes = 0;
    uint32_t count = 0;  // elements
    Place src = {}, src2 = {}, dst = {};
    ShortSender* sender = nullptr;
    ShortReceiver* receiver = nullptr;  // of the steps that receive
    // Filled by ShortCall: what is equal in all repetitions, and the addresses and signature of the latest.
    int look_cost = 1;
    ShortReceive receive = {};
  };
  struct Arithmetic {
    ReduceKernel kernel = nullptr;
    // Above 1: the output's `count` elements are divided by it at the end.
    int divisor = 1;
    DataType dtype = DataType::kUint8;
    size_t count = 0;
  };
  ShortCall(std::vector<Step> steps, size_t scratch_bytes, const Arithmetic& arithmetic);
  // It points into its own steps and scratch.
  ShortCall(const ShortCall&) = delete;
  ShortCall& operator=(const ShortCall&) = delete;

  // Begins a call: sends what its plan begins with. Readers that sleep are left asleep until Finish.
  // `call` stays until Finish has returned.
  void Post(const void* in, void* out, const runtime::CallRecord& call);
  // Does the other steps, and looks for messages that are not there for as long as `polls` looks into shared memory
  // take. True: the call is done, its result in place. False: it goes on as an operation at step done().
  bool Finish(int polls);

  // Whether a call that is done here has taken no longer than about a microsecond.
  bool at_once() const { return at_once_; }
  // After Finish was false: whether it stopped at a message that the short way cannot send or take. The next ones of
  // this call will probably be such ones too: the buffer lies in shared memory, or is read by the peer's kernel.
  bool takes_operation() const { return takes_operation_; }
  // Calls that were done here so far.
  uint64_t calls_done() const { return calls_done_; }

  // Steps of the plan that are done so far, from the first; and how many sends of the next one.
  size_t done() const;
  size_t parts_done() const { return next_ == steps_.data() + steps_.size() ? 0 : next_->part; }
  // The plan's scratch, with the results of those steps.
  std::span<const std::byte> scratch() const { return scratch_; }

 private:
  std::byte* At(const Place& place) const { return buffers_[static_cast<size_t>(place.buffer)] + place.offset; }
  Step* end() { return steps_.data() + steps_.size(); }
  // Leaves those that call at the same time the time to send, before the first look for a message.
  void WaitForOthers() const;
  // Both: false when nothing was done.
  bool Do(const Step& step);
  bool Receive(Step& step, int* polls) {
    step.receive.data = At(step.dst);
    step.receive.operand = At(step.src);
    step.receive.signature = call_->wire_signature;
    while (!step.receiver->Receive(step.receive)) {
      takes_operation_ = step.bytes > kMostShortBytes && step.receiver->TakesOperation();
      *polls -= step.look_cost;
      if (takes_operation_ || *polls < 0) return false;
      runtime::Pause();
    }
    return true;
  }

  std::vector<Step> steps_;
  std::vector<const Step*> prepared_;  // sends whose room is fetched when the call is done (Prepare)
  std::vector<std::byte> scratch_;
  const Arithmetic arithmetic_;
  bool at_once_ = true;
  uint64_t calls_done_ = 0;

  // The call under way.
  std::byte* buffers_[3] = {};  // by BufferId
  const runtime::CallRecord* call_ = nullptr;
  Step* next_ = nullptr;  // the first that is not done
  bool takes_operation_ = false;
};

}  // namespace cohort::comm
