// The black box of a rank, written for another library while the rank has no runtime. It is lost to a runtime that
// attaches, and to a later recorder.
#pragma once

#include <cstdint>
#include <optional>

#include "cohort/runtime/process/owner_word.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::nccl_profiler {

class RecordedBox {
 public:
  // Takes the box of `segment`, which was attached as Role::kRecorder and outlives it. It is not open where a runtime
  // has attached since.
  explicit RecordedBox(runtime::Segment* segment) : RecordedBox(runtime::RankPartOf(segment, segment->local_rank())) {}

  // Whether the box is still this object's. Any thread.
  bool open() const { return number_.has_value() && owner_.Is(*number_); }
  // Calls write(BlackBoxWriter&) if it is, and returns whether it has. A runtime that comes meanwhile waits for the end
  // of `write`, which does not block. One thread at a time.
  template <typename Function>
  bool Write(const Function& write) {
    if (!number_.has_value() || !owner_.Begin(*number_)) return false;
    const Turn turn(owner_);
    write(*writer_);
    return true;
  }

 private:
  class Turn {
   public:
    explicit Turn(const runtime::OwnerWord& owner) : owner_(owner) {}
    ~Turn() { owner_.End(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const runtime::OwnerWord& owner_;
  };

  explicit RecordedBox(runtime::RankPart* part);

  const runtime::OwnerWord owner_;
  std::optional<uint64_t> number_;  // of this owner
  std::optional<runtime::BlackBoxWriter> writer_;
};

}  // namespace cohort::comm::nccl_profiler
