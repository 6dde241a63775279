// A group's memory of its calls. A call that repeats an earlier one is not checked, chosen for and described again,
// which is most of the cost of a small call in addition to its messages.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// A call that was accepted, and what was made of it.
struct RememberedCall {
  uint64_t id = 0;  // never given twice

  CallArguments arguments;
  std::chrono::nanoseconds timeout{};
  Determinism determinism = Determinism::kDefault;
  void* stream = nullptr;

  // Bytes of the buffers that the call uses on this rank. 0: not used, or empty.
  size_t in_bytes = 0;
  size_t out_bytes = 0;
  uintptr_t out_minus_in = 0;  // of their addresses

  CollectiveRequest request;
  Provider* provider = nullptr;
  ServicePlan service;
  runtime::CallRecord record;    // with the number, signature and tag of the latest repetition
  uint64_t beyond_sequence = 0;  // runtime::HashBeyondSequence of that signature
  runtime::CallDescription description;
  // Made by the first repetition, when the links are there. Null: there is no short way, or it was not asked for.
  std::unique_ptr<ShortCall> short_call;
  ShortCall* short_call_now = nullptr;  // that one, unless it rests
  bool asked_short = false;             // true also where short calls are off
  // The number of next repetitions that go the general way, because an earlier one took an operation (RestShortCall).
  uint32_t resting = 0;
  uint32_t latest_rest = 0;
  uint64_t done_before_rest = 0;  // on the short way, before the latest rest

  // The buffers of a repetition, for the request.
  const void* InOf(const CallArguments& repeated) const { return in_bytes > 0 ? repeated.in.data : request.in; }
  void* OutOf(const CallArguments& repeated) const { return out_bytes > 0 ? repeated.out.data : request.out; }
};

// For ShortCallOf, where the short call is not made yet, or rests, or there is none.
ShortCall* AskShort(RememberedCall& known);
// The short call of a remembered one, made by the first repetition, if it may run now: it does not rest, and nothing is
// before it. Null otherwise.
inline ShortCall* ShortCallOf(RememberedCall& known) {
  if (!known.provider->Idle(known.request)) return nullptr;
  return known.short_call_now != nullptr ? known.short_call_now : AskShort(known);
}
// Its short call has stopped at a step that takes an operation: the next 8 repetitions do not try it. A rest is twice
// as long as the one before, up to 1,024, if fewer calls than that one had were done on the short way between the two.
void RestShortCall(RememberedCall& known);

// Calls that have taken the short way so far.
struct ShortCallCounts {
  uint64_t done = 0;       // on it
  uint64_t continued = 0;  // as operations
  uint64_t all() const { return done + continued; }
};

// One thread at a time. Finds in a few nanoseconds. A call has two places, which it shares with others; the call that
// was remembered first is forgotten when they are taken.
class CallMemo {
 public:
  // The remembered call that these arguments repeat, wherever their buffers lie: what was found right then still is.
  // Null: there is none, or the buffers lie to each other in another way.
  RememberedCall* Find(const CallArguments& arguments, const CallOptions& options);
  // Remembers a call on host memory of a group of `size` ranks, if it can be told by what Find looks at.
  void Remember(const CallArguments& arguments, const CallOptions& options, const AcceptedCall& call,
                Provider* provider, int rank, int size);
  // Forgets all calls: other algorithms may be chosen from now on.
  void Clear();
  // For tests: whether calls may take the short way. It is on at first. Members of a group need not agree.
  void UseShortCalls(bool use);
  bool uses_short_calls() const { return uses_short_calls_; }
  // Notes that a call took the short way, and whether it was done there.
  void CountShortCall(bool done) { ++(done ? counts_.done : counts_.continued); }
  const ShortCallCounts& short_calls() const { return counts_; }

 private:
  static constexpr size_t kPlaces = 64;
  static constexpr size_t Beside(size_t place) { return place ^ 1; }
  static bool CanRemember(const CallOptions& options) {
    return options.algorithm.empty() && options.user_op == nullptr;
  }
  RememberedCall* FindBeside(size_t place, const CallArguments& arguments, const CallOptions& options);

  std::array<std::unique_ptr<RememberedCall>, kPlaces> calls_;
  uint64_t last_id_ = 0;
  bool uses_short_calls_ = true;
  ShortCallCounts counts_;
};

// Fills all of `call` but its buffers, for a repetition whose number known.record has.
inline void FillFrom(const RememberedCall& known, AcceptedCall* call) {
  if (call->like == known.id) [[likely]] {
    call->request.tag = known.record.tag;
    call->record.tag = known.record.tag;
    call->record.signature.tuning = known.record.signature.tuning;
    call->record.signature.sequence = known.record.signature.sequence;
    call->record.wire_signature = known.record.wire_signature;
    return;
  }
  call->like = known.id;
  call->request = known.request;
  call->request.tag = known.record.tag;
  call->timeout = known.timeout;
  call->stream = known.stream;
  call->service = known.service;
  call->record = known.record;
}

}  // namespace cohort::comm
