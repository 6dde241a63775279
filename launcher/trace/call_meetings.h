// Brings the calls of all members of a collective together, and the two sides of a message: only then it is known who
// was waited for.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "cohort/runtime/segment/call_record.h"
#include "cohort/v1/trace.pb.h"

namespace cohort::launcher {

// A call of a rank.
struct TracedCall {
  uint32_t rank = 0;
  size_t node = 0;
  std::shared_ptr<const v1::CallShape> shape;
  uint64_t sequence = 0;
  uint64_t start_ns = 0;  // by the node's steady clock, as the next
  uint64_t end_ns = 0;
  runtime::CallState state = runtime::CallState::kDone;

  // False for a call that found all that it needed: its record ends when it began, however late that was.
  bool has_end() const { return end_ns > start_ns; }
};

class CallMeetings {
 public:
  using Clock = std::chrono::steady_clock;
  // A call without all members is given up after this time: some were missed, or a rank hangs in it.
  static constexpr std::chrono::seconds kComeWithin{2};
  static constexpr size_t kMostWaiting = 1u << 17;  // calls, of all ranks

  // The calls that met. `complete`: all members' are there.
  using OnMet = std::function<void(const std::vector<TracedCall>& calls, bool complete)>;

  explicit CallMeetings(OnMet on_met) : on_met_(std::move(on_met)) {}

  void Add(TracedCall call, Clock::time_point now);
  // Gives up what waits for too long.
  void Expire(Clock::time_point now);
  // Gives everything up.
  void Finish();

 private:
  // Group, epoch and sequence of a collective; a message has the world ranks of its two sides besides.
  using Key = std::tuple<uint64_t, uint32_t, uint64_t, int64_t, int64_t>;
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Meeting {
    std::vector<TracedCall> calls;
    uint64_t number = 0;  // of all there were
  };
  struct Began {
    Key key;
    uint64_t number = 0;
    Clock::time_point at;
  };

  static Key KeyOf(const TracedCall& call);
  void GiveUpOldest();

  const OnMet on_met_;
  std::unordered_map<Key, Meeting, KeyHash> meetings_;
  std::deque<Began> began_;  // in order; those that are complete too
  uint64_t numbers_ = 0;
  size_t waiting_ = 0;
};

// One that was waited for: `waiter` and `cause` are indices of the calls, whose times are by one clock.
struct Waited {
  size_t waiter = 0;
  size_t cause = 0;
};
// The members that waited for another one to come, by the rule of their kind of call: all for the last one in a barrier
// or an all-reduce, the others for the root of a broadcast, the root for the last one in a reduce. Differences up to
// `least_ns` are none.
std::vector<Waited> FindWaits(const std::vector<TracedCall>& calls, uint64_t least_ns);

// A waiter waited until this moment, in the time that its record tells. A record's own end counts for more than the
// start of the other call: it is by the rank's clock, and the clocks of two nodes agree only within an error.
inline uint64_t ReleaseOf(const TracedCall& waiter, const TracedCall& cause) {
  return waiter.has_end() ? std::min(cause.start_ns, waiter.end_ns) : cause.start_ns;
}

// Whether every member of this kind of call waits for every other one.
bool MeetsAll(const v1::CallShape& shape);
// Whether the member with this shape ends its call only after every other one has begun: as MeetsAll, or it receives.
bool AwaitsOthers(const v1::CallShape& shape);

}  // namespace cohort::launcher
