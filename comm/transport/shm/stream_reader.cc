#include "cohort/comm/transport/shm/stream_reader.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "cohort/comm/transport/shm/memory_ops.h"
#include "cohort/comm/transport/shm/operation_state.h"
#include "cohort/comm/transport/stream_copy.h"
#include "cohort/runtime/base/check.h"
#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/segment/black_box.h"

namespace cohort::comm::shm {
namespace {

Progress Fail(RecvOperation& operation, absl::Status status) {
  operation.error = std::move(status);
  return Progress::kFailed;
}

// A rank records a call just after its first message; if it is interrupted between the two, this long is waited.
constexpr uint64_t kRecordTimeNs = 20'000'000;

// The peer's record of the call whose signature it sent.
std::optional<runtime::CallRecord> FindCall(const runtime::BlackBoxReader& box, uint64_t signature) {
  std::vector<runtime::CallRecord> records = box.All();
  const auto found = std::find_if(records.rbegin(), records.rend(), [signature](const runtime::CallRecord& record) {
    return runtime::Carries(record, signature);
  });
  return found == records.rend() ? std::nullopt : std::optional(*found);
}

// Returns the record that tells most about the peer's part in the call `own`, if the box does not hold the call itself.
std::optional<runtime::CallRecord> FindSimilar(const runtime::BlackBoxReader& box, const runtime::CallRecord* own) {
  if (own == nullptr) return std::nullopt;
  const runtime::CallSignature& call = own->signature;
  if (std::optional<runtime::CallRecord> same = box.Find(call.group, call.epoch, call.sequence)) return same;
  return box.LatestOf(call.group, call.epoch);
}

}  // namespace

StreamReader::StreamReader(runtime::Segment& segment, OwnEndpoint& own, PeerEndpoint& peer, PrivateMemory* memory,
                           Arrivals* arrivals)
    : segment_(segment),
      own_(own),
      peer_(peer),
      memory_(memory),
      ack_(own.ack(peer.address().own_source)),
      slot_count_(peer.address().slots),
      slot_mask_(slot_count_ - 1),
      incoming_(memory == nullptr ? nullptr : &memory->ways(), static_cast<size_t>(peer.address().local_rank),
                arrivals) {
  COHORT_CHECK(std::has_single_bit(slot_count_));
}

Progress StreamReader::TryRecv(RecvOperation& operation) {
  OperationState state = OperationState::Load(operation.state);
  if (state.phase == Phase::kNew) {
    state = {Phase::kWaiting, ++tickets_};
    state.Store(operation.state);
  }
  if (state.value != turn_) return Progress::kBlocked;
  if (slots_ == nullptr) [[unlikely]] {
    if (const Progress attached = Attach(operation); attached != Progress::kDone) return attached;
  }
  const Slot& slot = slots_[SlotOf(taken_, slot_mask_)];
  const Line& line = slot.line;
  const uint64_t stamp = line.stamp.load(std::memory_order_acquire);
  if ((stamp & kNumberMask) != ((taken_ + 1) & kNumberMask)) return Progress::kBlocked;
  const uint64_t signature = line.signature;
  if (signature != operation.signature) [[unlikely]]
    return FailMismatch(operation, signature);
  const MessageKind kind = KindOf(stamp);
  if (kind != MessageKind::kInline) return TakeLarge(operation, kind, slot);

  const size_t bytes = InlineBytesOf(stamp);
  if (bytes != operation.bytes || bytes > kInlineBytes) [[unlikely]]
    return FailLength(operation, bytes);
  if (operation.reduce == nullptr) {
    CopySmall(operation.data, line.payload, bytes);
  } else {  // Deliver for what comes whole
    const std::byte* const left = operation.incoming_first ? line.payload : operation.operand;
    const std::byte* const right = operation.incoming_first ? operation.operand : line.payload;
    operation.reduce(operation.data, left, right, bytes / operation.element_bytes);
  }
  NextMessage();
  if (taken_ - acknowledged_ >= slot_count_ / 2) Acknowledge();
  ++turn_;
  return Progress::kDone;
}

Progress StreamReader::Attach(RecvOperation& operation) {
  const Progress attached = peer_.Attach();
  if (attached == Progress::kFailed) return Fail(operation, peer_.error());
  if (attached != Progress::kDone) return attached;
  slots_ = peer_.slots();
  if (memory_ != nullptr && memory_->Readable(peer_)) ack_.told[0].store(1, std::memory_order_relaxed);
  return Progress::kDone;
}

Progress StreamReader::TakeLarge(RecvOperation& operation, MessageKind kind, const Slot& slot) {
  Descriptor descriptor;
  std::memcpy(&descriptor, slot.line.payload, sizeof descriptor);
  if (descriptor.total != operation.bytes) return FailLength(operation, descriptor.total);
  switch (kind) {
    case MessageKind::kCopied:
      return TakeFromRing(operation, descriptor);
    case MessageKind::kDirect:
      return TakeDirect(operation, descriptor);
    case MessageKind::kPrivate:
      return TakePrivate(operation, descriptor);
    case MessageKind::kSlot:
      return TakeFromSlot(operation, slot);
    default:
      return FailDamaged(operation);
  }
}

Progress StreamReader::TakeFromSlot(RecvOperation& operation, const Slot& slot) {
  if (operation.bytes > kSlotBytes) return FailDamaged(operation);
  Deliver(operation, slot.payload, operation.bytes);
  NextMessage();
  if (taken_ - acknowledged_ >= slot_count_ / 2) Acknowledge();
  ++turn_;
  return Progress::kDone;
}

Progress StreamReader::TakeFromRing(RecvOperation& operation, const Descriptor& descriptor) {
  const uint64_t length = descriptor.length;
  if (!IsRingSize(descriptor.area_bytes) || length == 0 || length > operation.bytes - operation.moved ||
      descriptor.position > descriptor.area_bytes || length > descriptor.area_bytes - descriptor.position ||
      descriptor.position % kSlotStride != 0 || descriptor.area_offset % kSlotStride != 0 ||
      length % operation.element_bytes != 0 || descriptor.past_cache > 1) {
    return FailDamaged(operation);
  }
  Ring& ring = rings_[descriptor.past_cache];
  if (descriptor.area_offset != ring.block.offset || descriptor.area_bytes != ring.block.bytes) {
    const runtime::SegmentBlock block{.offset = descriptor.area_offset, .bytes = descriptor.area_bytes};
    absl::StatusOr<void*> data = segment_.MapAfresh(block);
    if (!data.ok()) return FailDamaged(operation);
    ring = {.block = block, .data = static_cast<const std::byte*>(*data)};
  }
  if (operation.moved == 0) {
    incoming_.Begin(descriptor.past_cache == 1 ? Way::kPastCache : Way::kCopied, operation.bytes);
  }
  const uint64_t began_ns = incoming_.BeginPart();
  Deliver(operation, ring.data + descriptor.position, length);
  incoming_.EndPart(began_ns);
  if (operation.moved == operation.bytes) EndWay(descriptor.reading_ns);
  NextMessage();
  ring_unacknowledged_ += PaddedPartBytes(length);
  if (ring_unacknowledged_ >= RingAckBytes(ring.block.bytes) || taken_ - acknowledged_ >= slot_count_ / 2)
    Acknowledge();
  if (operation.moved < operation.bytes) return Progress::kMoved;
  ++turn_;
  return Progress::kDone;
}

Progress StreamReader::TakeDirect(RecvOperation& operation, const Descriptor& descriptor) {
  absl::StatusOr<void*> data = segment_.Map({.offset = descriptor.area_offset, .bytes = operation.bytes});
  if (!data.ok()) return FailDamaged(operation);
  const size_t length = std::min(kPieceBytes, operation.bytes - operation.moved);
  if (length % operation.element_bytes != 0) return FailDamaged(operation);
  const size_t before = operation.moved;
  Deliver(operation, static_cast<const std::byte*>(*data) + operation.moved, length);
  if (peer_.Closed()) {
    operation.moved = before;
    return Progress::kBlocked;
  }
  if (operation.moved < operation.bytes) return Progress::kMoved;
  NextMessage();
  Acknowledge();
  ++turn_;
  return Progress::kDone;
}

Progress StreamReader::TakePrivate(RecvOperation& operation, const Descriptor& descriptor) {
  if (operation.moved == 0) incoming_.Begin(Way::kRead, operation.bytes);
  const size_t length = std::min(kPieceBytes, operation.bytes - operation.moved);
  if (memory_ == nullptr || length % operation.element_bytes != 0) return FailDamaged(operation);
  // An operand that is combined into another place is fetched to that place, which spares the cache a third buffer.
  const bool there = operation.reduce == nullptr || operation.data != operation.operand;
  std::byte* to = there ? operation.data + operation.moved : memory_->staging();
  const uint64_t began_ns = incoming_.BeginPart();
  switch (memory_->Read(peer_, descriptor.position + operation.moved, to, length)) {
    case ReadResult::kRead:
      if (peer_.Closed()) return Progress::kBlocked;
      break;
    case ReadResult::kGone:
      return Progress::kBlocked;  // the control plane reports the death, with its cause
    case ReadResult::kRefused:
      if (peer_.Closed()) return Progress::kBlocked;
      return Fail(operation,
                  absl::UnavailableError(
                      "the memory of rank " + std::to_string(peer_.address().world_rank) +
                      " cannot be read any more: it freed a buffer that an operation still uses, or changed its "
                      "permissions (user, dumpable flag, ptrace scope) while running"));
  }
  if (operation.reduce == nullptr) {
    operation.moved += length;
  } else {
    Deliver(operation, to, length);
  }
  incoming_.EndPart(began_ns);
  if (operation.moved < operation.bytes) return Progress::kMoved;
  EndWay(0);
  NextMessage();
  Acknowledge();
  ++turn_;
  return Progress::kDone;
}

void StreamReader::Deliver(RecvOperation& operation, const std::byte* payload, size_t bytes) {
  std::byte* to = operation.data + operation.moved;
  if (operation.reduce != nullptr) {
    const std::byte* operand = operation.operand + operation.moved;
    const std::byte* left = operation.incoming_first ? payload : operand;
    const std::byte* right = operation.incoming_first ? operand : payload;
    operation.reduce(to, left, right, bytes / operation.element_bytes);
  } else if (operation.bytes >= kStreamFrom) {
    StreamCopy(to, payload, bytes);
  } else {
    std::memcpy(to, payload, bytes);
  }
  operation.moved += bytes;
}

void StreamReader::EndWay(uint64_t sender_reading_ns) {
  if (!incoming_.End(sender_reading_ns)) return;
  ToldTimes told;
  for (size_t i = 0; i < told.words.size(); ++i) told.words[i] = ack_.told[i].load(std::memory_order_relaxed);
  // The sender's CPU has to fetch the line again whenever it is written.
  if (!incoming_.ShouldTell(told)) return;
  told = incoming_.Told(memory_->Readable(peer_));
  for (size_t i = 0; i < told.words.size(); ++i) ack_.told[i].store(told.words[i], std::memory_order_relaxed);
}

void StreamReader::Acknowledge() {
  acknowledged_ = taken_;
  ring_unacknowledged_ = 0;
  ack_.messages.store(taken_, std::memory_order_release);
  PublishFence();
  peer_.WakeAfterFence();
}

Progress StreamReader::FailMismatch(RecvOperation& operation, uint64_t peer_signature) {
  const runtime::BlackBoxReader box = segment_.black_box_of(peer_.address().local_rank);
  std::optional<runtime::CallRecord> call = FindCall(box, peer_signature);
  if (!call.has_value() && operation.call != nullptr) {
    const uint64_t now = runtime::SteadyNow();
    if (mismatch_since_ns_ == 0) mismatch_since_ns_ = now;
    if (now - mismatch_since_ns_ < kRecordTimeNs) return Progress::kBlocked;
    call = FindSimilar(box, operation.call);
  }
  operation.mismatch = true;
  operation.peer_signature = peer_signature;
  if (call.has_value()) operation.peer_call = *call;
  return Fail(operation, absl::FailedPreconditionError("rank " + std::to_string(peer_.address().world_rank) +
                                                       " takes part in another call"));
}

Progress StreamReader::FailDamaged(RecvOperation& operation) { return Fail(operation, peer_.error()); }

Progress StreamReader::FailLength(RecvOperation& operation, uint64_t bytes) {
  return Fail(operation, absl::InternalError("rank " + std::to_string(peer_.address().world_rank) + " sent " +
                                             std::to_string(bytes) + " bytes where its call has " +
                                             std::to_string(operation.bytes)));
}

}  // namespace cohort::comm::shm
