// Receives before their turn. A message that comes before its receive has been tried must be kept by the transport and
// copied a second time; where the memory is free, the runner tries a receive while the steps before it still run.
//
//   rank 0 of a flat gather    copy own block | recv 1 | recv 2 | recv 3
//   tried at once                               ^        ^        ^
#pragma once

#include <array>
#include <cstdint>

#include "cohort/comm/plan/plan.h"
#include "cohort/comm/run/bound_plan.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm {

// No receive is tried more steps than this before its turn, and no more of them at once.
inline constexpr int32_t kMostStepsAhead = 64;
inline constexpr uint32_t kMostEarlyReceives = 16;

// Sets Step::ahead of every receive: how many of the steps right before it neither write what it reads or writes nor
// read what it writes. Sends are not looked at: Step::sends_before of the steps up to it says which must be complete.
// O(steps).
void MarkEarlyReceives(Plan* plan);

// The receives of a lane that are under way before their turn, in the lane's order.
class EarlyReceives {
 public:
  struct Entry {
    const BoundStep* step = nullptr;
    RecvOperation operation;
    bool done = false;
  };

  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ == kMostEarlyReceives; }
  uint32_t size() const { return tail_ - head_; }
  Entry& at(uint32_t index) { return entries_[(head_ + index) % kMostEarlyReceives]; }
  Entry& Add(const BoundStep* step) {
    Entry& entry = entries_[tail_++ % kMostEarlyReceives];
    entry.step = step;
    entry.done = false;
    return entry;
  }
  void RemoveFirst() { ++head_; }

 private:
  std::array<Entry, kMostEarlyReceives> entries_;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

}  // namespace cohort::comm
