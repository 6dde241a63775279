#include "cohort/comm/run/bound_plan.h"

#include <new>
#include <string>
#include <utility>

namespace cohort::comm {
namespace {

// Stands for numbers of bytes that 64 bits cannot hold. No memory is that large.
constexpr size_t kTooManyBytes = size_t{1} << 62;

BoundStep::Place PlaceOf(const BoundMemory& memory, const Slice& slice) {
  const std::byte* base = memory.buffers()[static_cast<size_t>(slice.buffer)];
  return {slice.buffer, static_cast<size_t>(memory.At(slice).data - base)};
}

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
  SetBuffers(binding.in, binding.out);
  buffers_[2] = scratch_.get();
  return absl::OkStatus();
}

absl::Status BoundPlan::Bind(std::shared_ptr<const Plan> plan, const PlanBinding& binding,
                             std::span<Fanout* const> fanouts) {
  plan_ = std::move(plan);
  binding_ = binding;
  if (absl::Status bound = memory_.Bind(*plan_, binding_); !bound.ok()) {
    plan_.reset();
    return bound;
  }
  lane_count_ = plan_->lanes.size();
  if (lanes_.size() < lane_count_) lanes_.resize(lane_count_);
  for (size_t i = 0; i < lanes(); ++i) BindLane(plan_->lanes[i], fanouts[i], &lanes_[i]);
  begun_.state = MessageState::kNone;
  Rewind();
  return absl::OkStatus();
}

void BoundPlan::BindLane(const comm::Lane& lane, Fanout* fanout, Lane* bound) {
  bound->steps.clear();
  int32_t sends = 0;
  for (const Step& step : lane.steps) {
    BoundStep made;
    made.step = &step;
    made.kind = step.kind;
    const bool folds_own = step.kind == StepKind::kFold && !plan_->opens;
    const Slice& written = folds_own ? TargetsOf(*plan_, step)[0].slice : step.dst;
    made.bytes = memory_.At(made.sends() ? step.src : written).bytes;
    made.src = PlaceOf(memory_, step.src);
    made.src2 = PlaceOf(memory_, step.src2);
    made.dst = PlaceOf(memory_, written);
    made.peer = step.peer;
    made.sends_before = sends;
    const bool published = step.published || step.kind == StepKind::kPublish;
    if (published && fanout != nullptr && made.bytes <= fanout->max_bytes()) made.fanout = fanout;
    if (step.kind == StepKind::kPublish && made.fanout == nullptr) {
      for (int part = 1; part < plan_->size; ++part) {
        made.peer = PublishedTo(plan_->rank, plan_->size, part);
        made.ends_publish = part + 1 == plan_->size;
        bound->steps.push_back(made);
      }
    } else {
      bound->steps.push_back(made);
    }
    if (made.sends()) ++sends;
  }
}

}  // namespace cohort::comm
