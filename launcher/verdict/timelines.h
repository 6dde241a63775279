// The calls of each rank one after another, with the waits between ranks. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "cohort/launcher/trace/call_meetings.h"
#include "cohort/launcher/verdict/history.h"

namespace cohort::launcher {

// A time from `begin_ns` to `end_ns`.
struct Span {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;

  uint64_t length_ns() const { return end_ns > begin_ns ? end_ns - begin_ns : 0; }
  // The part of it in the other.
  Span In(const Span& other) const;
};

// A call at its place. Calls of one rank are named by their index.
struct PlacedCall {
  TracedCall call;
  uint64_t symbol = 0;        // the same for calls that repeat: same operation, group, other side and call site
  uint64_t occurrence = 0;    // of its symbol in its step, from 0
  uint64_t own_begin_ns = 0;  // when the rank was free before it: the rank's own time is from here to the start
  // It waited for a call of another rank until `release_ns` (ReleaseOf). `blocked_ns`: from when on it did nothing
  // else.
  bool waited = false;
  uint64_t release_ns = 0;
  uint64_t blocked_ns = 0;
  uint32_t cause_rank = 0;
  size_t cause = 0;
  size_t meeting = 0;  // index of Timelines::meetings

  uint64_t own_ns() const { return call.start_ns - own_begin_ns; }
  // The time of the call itself, when all that it waited for had come.
  Span transfer() const { return {waited ? release_ns : call.start_ns, call.end_ns}; }
  bool open() const { return call.state == runtime::CallState::kStarted; }
};

// Which call of which rank.
struct CallName {
  uint32_t rank = 0;
  size_t index = 0;
};

struct Timelines {
  std::map<uint32_t, std::vector<PlacedCall>> ranks;  // by the start of the calls
  std::vector<std::vector<CallName>> meetings;        // the calls of all members that are known
  uint64_t begin_ns = 0;                              // the first start of all
  uint64_t end_ns = 0;                                // the last end of all

  const PlacedCall& At(const CallName& name) const { return ranks.at(name.rank)[name.index]; }
};

// Waits up to `least_ns` are none.
Timelines PlaceCalls(const History& history, uint64_t least_ns);

}  // namespace cohort::launcher
