#include "cohort/comm/run/bound_memory.h"

#include <new>
#include <string>

namespace cohort::comm {
namespace {

// Stands for numbers of bytes that 64 bits cannot hold. No memory is that large.
constexpr size_t kTooManyBytes = size_t{1} << 62;

}  // namespace

BoundMemory::Range BoundMemory::AtUnequal(const Slice& slice) const {
  const auto buffer = static_cast<size_t>(slice.buffer);
  const int32_t block = slice.first / plan_->pieces;
  const auto pieces = static_cast<uint32_t>(plan_->pieces);
  const auto piece = static_cast<uint32_t>(slice.first) % pieces;
  const auto count = static_cast<uint64_t>(counts_[buffer][block]);
  const uint64_t begin = PieceBegin(count, piece, pieces);
  const uint64_t end = PieceBegin(count, piece + static_cast<uint32_t>(slice.chunks), pieces);
  std::byte* base = buffers_[buffer];
  if (end == begin) return {base, 0};
  return {base + (static_cast<uint64_t>(places_[buffer][block]) + begin) * binding_->element_bytes,
          (end - begin) * binding_->element_bytes};
}

size_t BoundMemory::PlaceUnequalScratch() {
  const BlockTable& blocks = *binding_->blocks;
  counts_[0] = blocks.in_counts.data();
  counts_[1] = blocks.out_counts.data();
  places_[0] = blocks.in_places.data();
  places_[1] = blocks.out_places.data();
  scratch_counts_.clear();
  scratch_places_.clear();
  int64_t end = 0;
  bool too_many = false;
  for (const Slice& like : plan_->scratch_like) {
    scratch_counts_.push_back(counts_[static_cast<size_t>(like.buffer)][like.first / plan_->pieces]);
    scratch_places_.push_back(end);
    too_many = __builtin_add_overflow(end, scratch_counts_.back(), &end) || too_many;
  }
  counts_[2] = scratch_counts_.data();
  places_[2] = scratch_places_.data();
  pieces_ = 0;
  size_t bytes;
  too_many = __builtin_mul_overflow(static_cast<size_t>(end), binding_->element_bytes, &bytes) || too_many;
  return too_many ? kTooManyBytes : bytes;
}

size_t BoundMemory::EqualScratch() const {
  const uint64_t block_bytes = binding_->count * binding_->element_bytes;
  uint64_t bytes;
  if (__builtin_mul_overflow(block_bytes, static_cast<uint64_t>(plan_->scratch_chunks) / pieces_ + 1, &bytes)) {
    return kTooManyBytes;
  }
  return OffsetOf(static_cast<uint32_t>(plan_->scratch_chunks));
}

absl::Status BoundMemory::Bind(const Plan& plan, const PlanBinding& binding) {
  plan_ = &plan;
  binding_ = &binding;
  pieces_ = static_cast<uint32_t>(plan.pieces);
  const size_t unequal_scratch = binding.blocks == nullptr ? 0 : PlaceUnequalScratch();
  if (plan.scratch_chunks > 0) {
    const size_t bytes = unequal() ? unequal_scratch : EqualScratch();
    if (scratch_bytes_ < bytes) {
      scratch_.reset(new (std::nothrow) std::byte[bytes]);
      scratch_bytes_ = scratch_ == nullptr ? 0 : bytes;
    }
    if (scratch_bytes_ < bytes) {
      return absl::ResourceExhaustedError("no memory for the " + std::to_string(bytes) + " bytes of scratch that " +
                                          plan.algorithm + " needs: choose another algorithm or cut the call");
    }
  }
  // Inputs are never written: the checker refuses plans that do.
  buffers_[0] = const_cast<std::byte*>(static_cast<const std::byte*>(binding.in));
  buffers_[1] = static_cast<std::byte*>(binding.out);
  buffers_[2] = scratch_.get();
  return absl::OkStatus();
}

}  // namespace cohort::comm
