// The sends and publishes of one lane that were begun, in order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/comm/transport/transport.h"

namespace cohort::comm {

// Slots are reused, so that a steady state allocates nothing. The address of one is stable while its message is under
// way.
class SendQueue {
 public:
  struct Slot {
    SendOperation own;
    SendOperation* operation = &own;  // or that of an inline run
    Link* link = nullptr;             // or
    Fanout* fanout = nullptr;         // (a publish)
    int32_t peer = -1;
    int32_t step = 0;  // the number of its step among the lane's sends and publishes
    bool done = false;
    bool failed = false;  // in the inline run
  };

  // Forgets everything, for the next operation. `steps`: those of its sends and publishes that are done.
  void Clear(int32_t steps) {
    head_ = tail_ = 0;
    steps_ = steps;
  }
  bool empty() const { return head_ == tail_; }
  // The slot for the next message. It joins the queue by Keep.
  Slot& Next() {
    if (tail_ == slots_.size()) slots_.push_back(std::make_unique<Slot>());
    slots_[tail_]->step = steps_;
    slots_[tail_]->done = false;
    return *slots_[tail_];
  }
  // Only unfinished messages are kept; a finished one behind nothing leaves no trace.
  void Keep(const Slot& slot) {
    if (!slot.done || !empty()) ++tail_;
  }
  // All messages of a step have been begun.
  void NextStep() { ++steps_; }
  // The number of steps of which all messages are done, counted without gaps.
  int32_t completed() const { return empty() ? steps_ : slots_[head_]->step; }

  // Calls function(slot) for every message that is not done, until one returns false. Then drops those in front that
  // are done.
  template <typename Function>
  bool ForEachPending(Function function) {
    for (uint32_t i = head_; i != tail_; ++i) {
      if (!slots_[i]->done && !function(*slots_[i])) return false;
    }
    while (!empty() && slots_[head_]->done) ++head_;
    if (empty()) head_ = tail_ = 0;
    return true;
  }
  // Adds the peers of messages that are not done.
  void AddPeers(std::vector<int>* peers) const {
    for (uint32_t i = head_; i != tail_; ++i) {
      if (!slots_[i]->done && slots_[i]->peer >= 0) peers->push_back(slots_[i]->peer);
    }
  }

 private:
  int32_t steps_ = 0;  // sends and publishes begun
  uint32_t head_ = 0;  // first slot that is not done
  uint32_t tail_ = 0;  // one past the last slot in use
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace cohort::comm
