// The memory that a plan's slices name in one operation: the caller's buffers, and scratch of the runner's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/plan/plan.h"
#include "cohort/comm/run/plan_binding.h"

namespace cohort::comm {

class BoundMemory {
 public:
  struct Range {
    std::byte* data;
    size_t bytes;
  };

  // Begins an operation; both outlive it. kResourceExhausted: there is no memory for the plan's scratch.
  absl::Status Bind(const Plan& plan, const PlanBinding& binding);
  Range At(const Slice& slice) const;
  // True when the blocks have lengths of their own.
  bool unequal() const { return pieces_ == 0; }
  // By BufferId.
  std::byte* const* buffers() const { return buffers_; }

 private:
  size_t OffsetOf(uint32_t chunk) const { return binding_->OffsetOf(chunk, pieces_); }
  Range AtUnequal(const Slice& slice) const;
  // Lays the scratch of a plan of unequal blocks out; returns its bytes.
  size_t PlaceUnequalScratch();
  // The bytes of the scratch of a plan of equal blocks.
  size_t EqualScratch() const;

  const Plan* plan_ = nullptr;
  const PlanBinding* binding_ = nullptr;
  uint32_t pieces_ = 1;  // 0: the blocks are unequal
  std::byte* buffers_[3] = {};
  std::unique_ptr<std::byte[]> scratch_;
  size_t scratch_bytes_ = 0;
  // Unequal blocks, by buffer and block, in elements.
  const int64_t* counts_[3] = {};
  const int64_t* places_[3] = {};
  std::vector<int64_t> scratch_counts_;
  std::vector<int64_t> scratch_places_;
};

inline BoundMemory::Range BoundMemory::At(const Slice& slice) const {
  if (slice.chunks == 0) return {buffers_[static_cast<int>(slice.buffer)], 0};
  size_t begin;
  size_t end;
  if (pieces_ == 1) [[likely]] {
    const size_t chunk_bytes = binding_->count * binding_->element_bytes;
    begin = static_cast<size_t>(slice.first) * chunk_bytes;
    end = begin + static_cast<size_t>(slice.chunks) * chunk_bytes;
  } else if (pieces_ == 0) [[unlikely]] {
    return AtUnequal(slice);
  } else {
    begin = OffsetOf(static_cast<uint32_t>(slice.first));
    end = OffsetOf(static_cast<uint32_t>(slice.first + slice.chunks));
  }
  // A null buffer is legal where there is nothing in it, and must not be moved from null.
  std::byte* base = buffers_[static_cast<int>(slice.buffer)];
  return {end == begin ? base : base + begin, end - begin};
}

}  // namespace cohort::comm
