// The state behind the Work of a batch, recycled: the requests of its calls, all-reduces that were gathered into one
// with the memory for that, and how many calls are still under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
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
  static bool Fits(const CollectiveRequest& request, const CallOptions& options);

  // Begins a new batch with its first call.
  void Begin(const CollectiveRequest& first, const CallOptions& options);
  // Whether the two combine alike.
  bool GoesWith(const CollectiveRequest& request) const {
    return request.dtype == first_.dtype && request.op == first_.op && request.determinism == first_.determinism;
  }
  // Adds a call that goes with the first if there is room; what decides is equal on all members.
  bool Add(const CollectiveRequest& request, const CallOptions& options);
  // Copies the inputs together, and makes the one call.
  CollectiveRequest Pack();
  // Copies the results to where they belong.
  void Unpack() const;
  const CallOptions& options() const { return options_; }

 private:
  struct Part {
    const void* in;
    void* out;
    int64_t count;
    uint64_t tag;
  };
  CollectiveRequest first_;
  CallOptions options_;
  std::vector<Part> parts_;
  int64_t count_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  size_t memory_bytes_ = 0;
};

class BatchState final : public PooledState<BatchState> {
 public:
  explicit BatchState(StatePool<BatchState>* pool) : PooledState(pool) {}

  // Forgets an earlier batch; its memory is kept.
  void Begin(size_t calls);

  // Makes and checks the requests of all calls; the first that is refused refuses them all.
  absl::Status Check(std::span<const BatchedCall> calls, const GroupContext& group, GroupProviders& providers);
  // Starts what Check has accepted: `submit` does so for one call.
  using Submit = std::function<runtime::Work(const CollectiveRequest& request, const CallOptions& options)>;
  void Start(std::span<const BatchedCall> calls, const GroupContext& group, const Submit& submit);
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

  // The gathered call that `request` may join and that has not been closed yet; null: none.
  GatheredCall* Open(const CollectiveRequest& request);
  // A new one, open.
  GatheredCall& OpenNew(const CollectiveRequest& request, const CallOptions& options);
  // One more call to wait for. `gathered`, if any, is unpacked when it is done.
  void Add(runtime::Work work, const GatheredCall* gathered);
  void Finished(const absl::Status& status);

  std::vector<CollectiveRequest> requests_;  // checked, by call
  std::vector<Provider*> providers_;         // that serve them
  std::vector<BlockTable> tables_;           // of the variable-count forms; the requests point into it
  size_t tables_used_ = 0;
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
