// A group's memory of its calls. A call that repeats an earlier one is not checked, chosen for and described again,
// which is most of the cost of a small call in addition to its messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cohort/comm/provider/prepared_call.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"

namespace cohort::comm {

// The part of some calls that CallArguments lack: the layouts of a variable-count form, a hash of the calls that were
// gathered into one (CollectiveRequest::parts), or an input that is no data.
struct CallShape {
  BlockLayout in_blocks = {};
  BlockLayout out_blocks = {};
  uint64_t parts = 0;
  InputMeaning input = InputMeaning::kData;
};

// A prepared call, and what its repetitions have in common.
struct RememberedCall : PreparedCall {
  CallArguments arguments;
  Determinism determinism = Determinism::kDefault;
  bool shaped = false;      // it has a CallShape, which `blocks` and the request hold
  bool may_repeat = false;  // the rest tells it from all other calls

  // Bytes of the buffers that the call uses on this rank. 0: not used, or empty.
  size_t in_bytes = 0;
  size_t out_bytes = 0;
  uintptr_t out_minus_in = 0;    // of their addresses
  uint64_t beyond_sequence = 0;  // runtime::HashBeyondSequence of the record's signature

  // The buffers of a repetition: its own, where the call uses some.
  const void* InOf(const CallArguments& repeated) const { return in_bytes > 0 ? repeated.in.data : request.in; }
  void* OutOf(const CallArguments& repeated) const { return out_bytes > 0 ? repeated.out.data : request.out; }
};

// One thread at a time. Finds in a few nanoseconds. A call has eight places, which it shares with others; the call that
// was remembered first is forgotten when all are taken.
class CallMemo {
 public:
  // The remembered call that these arguments repeat, wherever their buffers lie: what was found right then still is.
  // Null: there is none, or the buffers lie to each other in another way. `shape`: null for a call without one.
  RememberedCall* Find(const CallArguments& arguments, const CallOptions& options, const CallShape* shape = nullptr);
  // Remembers a call, if it may repeat, and returns where it is then. `made` is what was forgotten for it, or null.
  RememberedCall& Keep(std::unique_ptr<RememberedCall>& made);
  // Whether calls with such options may repeat.
  static bool CanRemember(const CallOptions& options) {
    return options.algorithm.empty() && options.user_op == nullptr;
  }
  // Forgets all calls: other algorithms may be chosen from now on.
  void Clear();
  // For tests: whether calls may run in the caller's thread. They do at first. Members of a group need not agree.
  void RunInline(bool run);
  bool runs_inline() const { return runs_inline_; }
  const InlineCounts& inline_calls() const { return counts_; }

 private:
  static constexpr size_t kPlaces = 256;
  static constexpr size_t kWays = 8;  // places of a call: its own, and those beside it
  // Find, in all places of the call.
  RememberedCall* Search(size_t place, const CallArguments& arguments, const CallOptions& options,
                         const CallShape* shape);

  std::array<std::unique_ptr<RememberedCall>, kPlaces> calls_;
  uint64_t last_id_ = 0;
  bool runs_inline_ = true;
  InlineCounts counts_;
};

}  // namespace cohort::comm
