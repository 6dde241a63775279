// The state behind the Work of a batch, recycled: its calls as they are prepared, all-reduces that were gathered into
// one with the memory for that, and how many calls are still under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/group/call_memo.h"
#include "cohort/comm/group/call_recorder.h"
#include "cohort/comm/group/group_providers.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/provider/state_pool.h"
#include "cohort/comm/request.h"
#include "cohort/runtime/engine/work.h"

namespace cohort::comm {

// All-reduces of one type and op, one after another in memory of their own.
class GatheredCall {
 public:
  // True when the call may join others: small, an all-reduce, on host memory, and nothing asked of its own.
  static bool Fits(const CallArguments& arguments, const CallOptions& options);

  // Begins a new batch with its first call. `determinism` is that of its request, as all members have it.
  void Begin(const BatchedCall& first, Determinism determinism);
  // Whether the two combine alike.
  bool GoesWith(const CallArguments& arguments, Determinism determinism) const {
    return arguments.in.dtype == arguments_.in.dtype && arguments.op == arguments_.op && determinism == determinism_;
  }
  // Adds a call that goes with the first if there is room; what decides is equal on all members.
  bool Add(const BatchedCall& call);
  // Makes one call of them, with room for its memory.
  void Close();
  // Copies the inputs together.
  void Pack();
  // Copies the results to where they belong.
  void Unpack() const;

  // The one call. A call that has found no company is as it was passed.
  const CallArguments& arguments() const { return arguments_; }
  const CallOptions& options() const { return options_; }
  uint64_t parts() const { return parts_hash_; }

 private:
  struct Part {
    const void* in;
    void* out;
    int64_t count;
    uint64_t tag;
  };
  CallArguments arguments_;
  CallOptions options_;
  Determinism determinism_ = Determinism::kFast;
  std::vector<Part> parts_;
  uint64_t parts_hash_ = 0;
  int64_t count_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  size_t memory_bytes_ = 0;
};

// A call of a batch, or several that were gathered.
struct BatchedPart {
  // They belong to the caller, or to `gathered`.
  const CallArguments* arguments = nullptr;
  const CallOptions* options = nullptr;
  CallShape shape = {};
  bool shaped = false;
  GatheredCall* gathered = nullptr;
  bool known = false;                         // the group remembers it; or
  std::unique_ptr<RememberedCall> made = {};  // the prepared call

  const CallShape* shape_or_null() const { return shaped ? &shape : nullptr; }
};

class BatchState final : public PooledState<BatchState> {
 public:
  explicit BatchState(StatePool<BatchState>* pool) : PooledState(pool) {}

  // The group's parts that find and make prepared calls.
  struct Makers {
    CallMemo& memo;
    GroupProviders& providers;
    CallRecorder& recorder;
  };
  // Begins a new batch: finds or makes its calls; the first that is refused refuses them all. An earlier batch is
  // forgotten, but for its memory. `calls` stay until Run has returned.
  absl::Status Make(std::span<const BatchedCall> calls, const GroupContext& group, Makers makers);
  // Starts all calls; `run` does so for one.
  using RunPart = std::function<runtime::Work(BatchedPart& part)>;
  void Run(const RunPart& run);
  // Its recorded calls have the tickets from `first` to `last`. If other calls have tickets in between, nothing is
  // known.
  void SetTickets(uint64_t first, uint64_t last) {
    const bool known = recorded_ > 0 && last - first + 1 == recorded_;
    awaited_ = known ? runtime::AwaitedCalls{first, last} : runtime::AwaitedCalls();
  }
  runtime::AwaitedCalls awaited() const { return awaited_; }
  // All calls have been started. The object may be gone afterwards.
  void Close() { Finished(absl::OkStatus()); }

 private:
  // Is called at the end of one call.
  class Listener final : public runtime::WorkListener {
   public:
    Listener() : WorkListener(/*makes_calls=*/false) {}
    void Hear(BatchState* batch, const GatheredCall* gathered) {
      batch_ = batch;
      gathered_ = gathered;
    }

   private:
    void OnDone(const absl::Status& status) override {
      if (gathered_ != nullptr && status.ok()) gathered_->Unpack();
      batch_->Finished(status);
    }
    BatchState* batch_ = nullptr;
    const GatheredCall* gathered_ = nullptr;
  };

  void Begin(size_t calls);
  // Checks a call that may join others, and gathers it. One that was closed for it is the next part.
  absl::Status Gather(const BatchedCall& call, const GroupContext& group, Makers makers);
  absl::Status AddGathered(GatheredCall& gathered, const GroupContext& group, Makers makers);
  // The next part, for its caller to fill all but `known` and `made`, which MakePart does.
  BatchedPart& NextPart();
  absl::Status MakePart(const GroupContext& group, Makers makers, BatchedPart* part);
  // One more call to wait for. `gathered`, if any, is unpacked when it is done.
  void Add(runtime::Work work, const GatheredCall* gathered);
  void Finished(const absl::Status& status);

  std::vector<BatchedPart> parts_;  // in the order in which they are started
  size_t parts_used_ = 0;
  std::vector<Provider*> providers_;  // that serve them
  std::vector<std::unique_ptr<GatheredCall>> gathered_;
  size_t gathered_used_ = 0;
  std::vector<GatheredCall*> open_gathered_;
  std::vector<Listener> listeners_;  // enough for all calls before the first is added: their addresses are kept
  size_t listeners_used_ = 0;
  int64_t under_way_ = 0;  // calls, and one until all have been started
  uint64_t recorded_ = 0;  // calls that other ranks take part in
  runtime::AwaitedCalls awaited_;
  absl::Status error_;
};

}  // namespace cohort::comm
