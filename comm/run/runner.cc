#include "cohort/comm/run/runner.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "cohort/runtime/base/check.h"

namespace cohort::comm {
namespace {

// Local copies and reductions of more than this are spread over several calls of Advance.
constexpr size_t kLocalBytesAtOnce = 256 * 1024;
// Stands for numbers of bytes that no 64 bits hold: no memory has so many.
constexpr size_t kTooManyBytes = size_t{1} << 62;

}  // namespace

PlanRunner::PlanRunner(LinkSource* source, int rank, int size)
    : source_(source), rank_(rank), size_(size), direct_(rank, size) {}
PlanRunner::~PlanRunner() = default;

PlanRunner::Range PlanRunner::Bind(const Slice& slice) const {
  if (slice.chunks == 0) return {buffers_[static_cast<int>(slice.buffer)], 0};
  size_t begin;
  size_t end;
  if (pieces_ == 1) [[likely]] {
    const size_t chunk_bytes = binding_.count * binding_.element_bytes;
    begin = static_cast<size_t>(slice.first) * chunk_bytes;
    end = begin + static_cast<size_t>(slice.chunks) * chunk_bytes;
  } else if (pieces_ == 0) [[unlikely]] {
    return BindUnequal(slice);
  } else {
    begin = OffsetOf(static_cast<uint32_t>(slice.first));
    end = OffsetOf(static_cast<uint32_t>(slice.first + slice.chunks));
  }
  // A null buffer is legal where there is nothing in it, and must not be moved from null.
  std::byte* base = buffers_[static_cast<int>(slice.buffer)];
  return {end == begin ? base : base + begin, end - begin};
}

PlanRunner::Range PlanRunner::BindUnequal(const Slice& slice) const {
  const auto buffer = static_cast<size_t>(slice.buffer);
  const int32_t block = slice.first / plan_->pieces;
  const auto pieces = static_cast<uint32_t>(plan_->pieces);
  const auto piece = static_cast<uint32_t>(slice.first) % pieces;
  const auto count = static_cast<uint64_t>(counts_[buffer][block]);
  const uint64_t begin = PieceBegin(count, piece, pieces);
  const uint64_t end = PieceBegin(count, piece + static_cast<uint32_t>(slice.chunks), pieces);
  std::byte* base = buffers_[buffer];
  if (end == begin) return {base, 0};
  return {base + (static_cast<uint64_t>(places_[buffer][block]) + begin) * binding_.element_bytes,
          (end - begin) * binding_.element_bytes};
}

size_t PlanRunner::PlaceUnequalScratch() {
  const BlockTable& blocks = *binding_.blocks;
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
  too_many = __builtin_mul_overflow(static_cast<size_t>(end), binding_.element_bytes, &bytes) || too_many;
  return too_many ? kTooManyBytes : bytes;
}

size_t PlanRunner::EqualScratch() const {
  const uint64_t block_bytes = binding_.count * binding_.element_bytes;
  uint64_t bytes;
  if (__builtin_mul_overflow(block_bytes, static_cast<uint64_t>(plan_->scratch_chunks) / pieces_ + 1, &bytes)) {
    return kTooManyBytes;
  }
  return OffsetOf(static_cast<uint32_t>(plan_->scratch_chunks));
}

bool PlanRunner::Start(const Plan& plan, const PlanBinding& binding) {
  plan_ = &plan;
  binding_ = binding;
  pieces_ = static_cast<uint32_t>(plan.pieces);
  lanes_in_use_ = plan.lanes.size();
  while (lanes_.size() < lanes_in_use_) {
    auto state = std::make_unique<LaneState>();
    state->lane = static_cast<uint16_t>(lanes_.size());
    state->links.resize(size_);
    lanes_.push_back(std::move(state));
  }
  for (size_t i = 0; i < lanes_in_use_; ++i) {
    LaneState& lane = *lanes_[i];
    lane.cursor = plan.lanes[i].steps.data();
    lane.end = lane.cursor + plan.lanes[i].steps.size();
    lane.scanned = lane.cursor;
    lane.receiving = false;
    lane.local_moved = 0;
    lane.posted = 0;
    lane.head = lane.tail = 0;
  }
  const size_t unequal_scratch = binding.blocks == nullptr ? 0 : PlaceUnequalScratch();
  if (plan.scratch_chunks > 0) {
    const size_t bytes = pieces_ == 0 ? unequal_scratch : EqualScratch();
    if (scratch_bytes_ < bytes) {
      scratch_.reset(new (std::nothrow) std::byte[bytes]);
      scratch_bytes_ = scratch_ == nullptr ? 0 : bytes;
    }
    if (scratch_bytes_ < bytes) {
      Fail(absl::ResourceExhaustedError("no memory for the " + std::to_string(bytes) + " bytes of scratch that " +
                                        plan.algorithm + " needs: choose another algorithm or cut the call"),
           -1);
      lanes_in_use_ = 0;
      return false;
    }
  }
  // Inputs are never written: the checker refuses plans that do.
  buffers_[0] = const_cast<std::byte*>(static_cast<const std::byte*>(binding.in));
  buffers_[1] = static_cast<std::byte*>(binding.out);
  buffers_[2] = scratch_.get();
  direct_.Start(plan, binding_, buffers_);
  return true;
}

Progress PlanRunner::Advance() {
  if (failed_) return Progress::kFailed;
  if (unwoken_ != nullptr) std::exchange(unwoken_, nullptr)->WakeReaders();
  bool moved = false;
  bool done = true;
  for (size_t i = 0; i < lanes_in_use_; ++i) {
    LaneState& lane = *lanes_[i];
    if (lane.head != lane.tail && !TrySends(lane, &moved)) return Progress::kFailed;
    if (lane.cursor != lane.end && !RunSteps(lane, &moved)) return Progress::kFailed;
    if (lane.cursor != lane.end && !ReceiveEarly(lane, &moved)) return Progress::kFailed;
    done = done && lane.cursor == lane.end && lane.head == lane.tail;
  }
  if (done) return Progress::kDone;
  return moved ? Progress::kMoved : Progress::kBlocked;
}

int32_t PlanRunner::CompletedSends(const LaneState& lane) const {
  return lane.head == lane.tail ? lane.posted : lane.slots[lane.head]->index;
}

bool PlanRunner::TrySlot(SendSlot& slot, bool* moved) {
  const bool publish = slot.fanout != nullptr;
  return Settle(slot, publish ? slot.fanout->TryPublish(slot.operation) : slot.link->TrySend(slot.operation), moved);
}

bool PlanRunner::Settle(SendSlot& slot, Progress progress, bool* moved) {
  if (progress == Progress::kFailed) [[unlikely]] {
    Fail(std::move(slot.operation.error), slot.peer);
    return false;
  }
  slot.done = progress == Progress::kDone;
  *moved = *moved || progress != Progress::kBlocked;
  return true;
}

bool PlanRunner::TrySends(LaneState& lane, bool* moved) {
  for (uint32_t i = lane.head; i != lane.tail; ++i) {
    SendSlot& slot = *lane.slots[i];
    if (!slot.done && !TrySlot(slot, moved)) return false;
  }
  while (lane.head != lane.tail && lane.slots[lane.head]->done) ++lane.head;
  if (lane.head == lane.tail) lane.head = lane.tail = 0;
  return true;
}

PlanRunner::SendSlot& PlanRunner::NextSlot(LaneState& lane, const Range& range, Link* link, Fanout* fanout, int peer) {
  if (lane.tail == lane.slots.size()) lane.slots.push_back(std::make_unique<SendSlot>());
  SendSlot& slot = *lane.slots[lane.tail];
  slot.link = link;
  slot.fanout = fanout;
  slot.peer = peer;
  slot.index = lane.posted;
  slot.done = false;
  SendOperation& operation = slot.operation;
  operation.data = range.data;
  operation.bytes = range.bytes;
  operation.signature = binding_.signature;
  if (pieces_ == 0) [[unlikely]]
    operation.signature = runtime::SignatureWithLength(binding_.signature, range.bytes);
  operation.call = binding_.call;
  operation.moved = 0;
  operation.state = nullptr;
  return slot;
}

// Only what is unfinished is kept; a finished one in front of nothing leaves no trace.
void PlanRunner::Keep(LaneState& lane, const SendSlot& slot) {
  if (!slot.done || lane.head != lane.tail) ++lane.tail;
}

bool PlanRunner::PostTo(LaneState& lane, const Range& range, Link* link, Fanout* fanout, int peer, bool* moved) {
  SendSlot& slot = NextSlot(lane, range, link, fanout, peer);
  if (!TrySlot(slot, moved)) return false;
  Keep(lane, slot);
  return true;
}

void PlanRunner::PublishFirst() {
  LaneState& lane = *lanes_.front();
  if (lane.cursor == lane.end || lane.cursor->kind != StepKind::kPublish) return;
  const Range range = Bind(lane.cursor->src);
  Fanout* fanout = nullptr;
  if (!FanoutOf(lane, &fanout) || fanout == nullptr || range.bytes > fanout->max_bytes()) return;
  SendSlot& slot = NextSlot(lane, range, nullptr, fanout, -1);
  bool moved = false;
  if (!Settle(slot, fanout->TryPublishQuietly(slot.operation), &moved)) return;
  Keep(lane, slot);
  ++lane.posted;
  ++lane.cursor;
  unwoken_ = fanout;
}

bool PlanRunner::Post(LaneState& lane, const Step& step, bool* moved) {
  const Range range = Bind(step.src);
  if (step.kind == StepKind::kSend) {
    Link* link = LinkTo(lane, step.peer);
    if (link == nullptr || !PostTo(lane, range, link, nullptr, step.peer, moved)) return false;
  } else {
    Fanout* fanout = nullptr;
    if (!FanoutOf(lane, &fanout)) return false;
    if (fanout != nullptr && range.bytes <= fanout->max_bytes()) {
      if (!PostTo(lane, range, nullptr, fanout, -1, moved)) return false;
    } else {
      // From the next rank on, so that not all ranks begin with the same one.
      for (int i = 1; i < size_; ++i) {
        const int peer = rank_ + i < size_ ? rank_ + i : rank_ + i - size_;
        Link* link = LinkTo(lane, peer);
        if (link == nullptr || !PostTo(lane, range, link, nullptr, peer, moved)) return false;
      }
    }
  }
  ++lane.posted;
  return true;
}

bool PlanRunner::Combine(std::byte* dst, const std::byte* a, const std::byte* b, size_t bytes) {
  const size_t count = bytes / binding_.element_bytes;
  if (binding_.user_op == nullptr) [[likely]] {
    binding_.kernel(dst, a, b, count);
    return true;
  }
  const UserReduceOp& op = *binding_.user_op;
  std::string what = "something that is no std::exception";
  try {
    op.function(dst, a, b, static_cast<int64_t>(count), binding_.dtype, op.context);
    return true;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  Fail(absl::InternalError("the function of the user op " + std::string(op.name) + " threw: " + what), -1);
  return false;
}

bool PlanRunner::CombineReceived(LaneState& lane, const Step& step) {
  const Range dst = Bind(step.dst);
  const std::byte* own = Bind(step.src).data;
  const std::byte* incoming = lane.incoming.data();
  if (dst.bytes == 0) return true;
  return Combine(dst.data, step.incoming_first ? incoming : own, step.incoming_first ? own : incoming, dst.bytes);
}

Progress PlanRunner::RunLocal(LaneState& lane, const Step& step) {
  const Range dst = Bind(step.dst);
  const Range src = Bind(step.src);
  size_t bytes = dst.bytes - lane.local_moved;
  const size_t at = lane.local_moved;
  if (bytes > kLocalBytesAtOnce) bytes = kLocalBytesAtOnce / binding_.element_bytes * binding_.element_bytes;
  if (bytes > 0) {
    if (step.kind == StepKind::kReduce) {
      const Range src2 = Bind(step.src2);
      if (!Combine(dst.data + at, src.data + at, src2.data + at, bytes)) return Progress::kFailed;
    } else if (dst.data != src.data) {
      std::memcpy(dst.data + at, src.data + at, bytes);
    }
  }
  lane.local_moved += bytes;
  return lane.local_moved == dst.bytes ? Progress::kDone : Progress::kMoved;
}

bool PlanRunner::RunSteps(LaneState& lane, bool* moved) {
  while (lane.cursor != lane.end) {
    const Step& step = *lane.cursor;
    if (step.sends_before > CompletedSends(lane)) return true;
    Progress progress = Progress::kDone;
    switch (step.kind) {
      case StepKind::kSend:
      case StepKind::kPublish:
        if (!Post(lane, step, moved)) return false;
        break;
      case StepKind::kRecv:
      case StepKind::kRecvReduce:
        progress = Receive(lane, step);
        break;
      case StepKind::kReduce:
      case StepKind::kCopy:
        progress = RunLocal(lane, step);
        break;
      case StepKind::kOpen:
      case StepKind::kMeet:
      case StepKind::kFold:
        progress = RunDirect(lane, step);
        break;
    }
    if (progress == Progress::kFailed) return false;
    if (progress != Progress::kDone) {
      *moved = *moved || progress == Progress::kMoved;
      return true;
    }
    *moved = true;
    lane.receiving = false;
    lane.local_moved = 0;
    ++lane.cursor;
    if (direct_.diverted()) lane.cursor = lane.end;
  }
  return true;
}

Progress PlanRunner::RunDirect(LaneState& lane, const Step& step) {
  Fanout* fanout = nullptr;
  if (!FanoutOf(lane, &fanout)) return Progress::kFailed;
  const Progress progress = direct_.Run(step, fanout);
  if (progress == Progress::kFailed) {
    failure_ = std::move(direct_.failure());
    Fail(std::move(failure_.status), failure_.peer);
  }
  return progress;
}

Link* PlanRunner::LinkTo(LaneState& lane, int peer) {
  if (Link* link = lane.links[peer].get(); link != nullptr) [[likely]]
    return link;
  absl::StatusOr<std::unique_ptr<Link>> made = source_->MakeLink(peer, lane.lane);
  if (!made.ok()) {
    Fail(made.status(), peer);
    return nullptr;
  }
  lane.links[peer] = *std::move(made);
  return lane.links[peer].get();
}

bool PlanRunner::FanoutOf(LaneState& lane, Fanout** out) {
  if (!lane.fanout_asked) [[unlikely]] {
    absl::StatusOr<std::unique_ptr<Fanout>> made = source_->MakeFanout(lane.lane);
    if (!made.ok()) {
      Fail(made.status(), -1);
      return false;
    }
    lane.fanout = *std::move(made);
    lane.fanout_asked = true;
  }
  *out = lane.fanout.get();
  return true;
}

void PlanRunner::NoteMismatch(const RecvOperation& operation) {
  failure_.mismatch = operation.mismatch;
  failure_.peer_signature = operation.peer_signature;
  failure_.peer_call = operation.peer_call;
  if (!operation.mismatch || pieces_ != 0) return;
  constexpr uint64_t kMostBytes = uint64_t{1} << 48;  // of what a signature of another call rarely looks like
  failure_.expected_bytes = operation.bytes;
  failure_.peer_bytes = runtime::LengthIn(operation.peer_signature, binding_.signature);
  failure_.other_length = failure_.peer_bytes < kMostBytes && failure_.peer_bytes % binding_.element_bytes == 0;
}

void PlanRunner::Fail(absl::Status status, int peer) {
  failure_.status = status.ok() ? absl::InternalError("a transport failed without saying why") : std::move(status);
  failure_.peer = peer;
  failed_ = true;
}

std::vector<int> PlanRunner::WaitingFor() const {
  std::vector<int> peers;
  for (size_t i = 0; i < lanes_in_use_; ++i) {
    const LaneState& lane = *lanes_[i];
    for (uint32_t s = lane.head; s != lane.tail; ++s) {
      const SendSlot& slot = *lane.slots[s];
      if (!slot.done && slot.peer >= 0) peers.push_back(slot.peer);
    }
    if (lane.cursor != lane.end && lane.receiving) peers.push_back(lane.cursor->peer);
  }
  if (lanes_in_use_ > 0) direct_.AddWaitingFor(&peers);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

void PlanRunner::Reset() {
  lanes_.clear();
  lanes_in_use_ = 0;
  plan_ = nullptr;
  unwoken_ = nullptr;
  failed_ = false;
}

}  // namespace cohort::comm
