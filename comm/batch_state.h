// The state behind the Work of a batch: counts its calls, and holds the memory of all-reduces that were gathered into
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "comm/request.h"
#include "runtime/engine.h"
#include "runtime/work.h"

namespace cohort::comm {

// All-reduces of one type and op, one after another in memory of their own.
class GatheredCall {
 public:
  // True when the call may join others: small, an all-reduce, on host memory, and nothing asked of its own.
  static bool Fits(const CollectiveRequest& request, const CallOptions& options);

  explicit GatheredCall(const CollectiveRequest& first, const CallOptions& options)
      : first_(first), options_(options) {}

  // Whether the two combine alike.
  bool GoesWith(const CollectiveRequest& request) const {
    return request.dtype == first_.dtype && request.op == first_.op && request.determinism == first_.determinism;
  }
  // Adds the call if it goes together with the first and there is room; what decides is equal on all members.
  bool Add(const CollectiveRequest& request, const CallOptions& options);
  // Copies the inputs together, and makes the one call.
  CollectiveRequest Pack();
  // Copies the results to where they belong.
  void Unpack() const;
  const CallOptions& options() const { return options_; }
  size_t calls() const { return parts_.size(); }
  const CollectiveRequest& first() const { return first_; }

 private:
  struct Part {
    const void* in;
    void* out;
    int64_t count;
  };
  CollectiveRequest first_;
  CallOptions options_;
  std::vector<Part> parts_;
  int64_t count_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

class BatchState final : public runtime::WorkState {
 public:
  // `source` makes the progress of its calls; both outlive the calls.
  BatchState(runtime::Engine* engine, runtime::ProgressSource* source) : engine_(engine), source_(source) {}

  // One more call to wait for. The state lives until `work` is done. `gathered`, if any, is unpacked then.
  void Add(runtime::Work work, std::unique_ptr<GatheredCall> gathered);
  // All calls have been added.
  void Close() { Finished(absl::OkStatus()); }

 private:
  void Wait(runtime::Deadline deadline) override;
  void Finished(const absl::Status& status);

  runtime::Engine* const engine_;
  runtime::ProgressSource* const source_;
  int64_t open_ = 1;  // calls under way, and one until Close
  absl::Status error_;
};

}  // namespace cohort::comm
