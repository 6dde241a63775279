// The shortcut over repeating stretches of a plan: once the state of all actors, messages and links is that of some
// operations ago, shifted in time, everything goes on at that pace until the stretch ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cohort::comm {

class EventEngine;

class SteadyState {
 public:
  explicit SteadyState(EventEngine* engine) : engine_(*engine) {}

  // A stretch of the plan begins: what was seen in another one does not count.
  void Restart();
  // `at` is the first actor's operation in the stretch, whose operations repeat after `period`. Once a period it
  // compares the state at `now` with an earlier one, and moves the engine on by as many periods as fit where they are
  // equal.
  void Look(size_t at, size_t period, int64_t now);

 private:
  struct Seen {
    size_t at;
    int64_t now;
    int64_t posted;
    int64_t messages;
    double wire_bytes, core_bytes;
    std::vector<double> uplink_use;
    std::vector<int64_t> state;
  };

  // The state relative to `now`, for comparison.
  void Snapshot(int64_t now, std::vector<int64_t>* state) const;
  void TrySkip(int64_t now);
  void Shift(int64_t by, int64_t operations, int64_t sends);

  EventEngine& engine_;
  size_t seen_at_ = 0;
  // The state to compare with, and after how many comparisons the then current one takes its place: twice as many each
  // time, so that any period is found (Brent).
  std::unique_ptr<Seen> seen_;
  int64_t compared_ = 0, compare_ = 1;
};

}  // namespace cohort::comm
