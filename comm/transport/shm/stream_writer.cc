#include "cohort/comm/transport/shm/stream_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "cohort/comm/transport/shm/memory_ops.h"
#include "cohort/comm/transport/shm/operation_state.h"
#include "cohort/comm/transport/stream_copy.h"
#include "cohort/runtime/base/check.h"

namespace cohort::comm::shm {
namespace {

Progress Fail(SendOperation& operation, absl::Status status) {
  operation.error = std::move(status);
  return Progress::kFailed;
}

}  // namespace

StreamWriter::StreamWriter(runtime::Segment& segment, OwnEndpoint& own, std::vector<PeerEndpoint>& readers,
                           PrivateMemory& memory, const StreamLimits& limits)
    : segment_(segment),
      own_(own),
      readers_(readers),
      memory_(memory),
      limits_(limits),
      slots_(own.slots()),
      slot_count_(own.slot_count()),
      slot_mask_(slot_count_ - 1),
      ring_head_at_(own.slot_count()) {
  small_.chunk_bytes = kSmallChunkBytes;
  COHORT_CHECK(std::has_single_bit(slot_count_));
  large_.chunk_bytes = limits.small_chunks_only ? kSmallChunkBytes : kLargeChunkBytes;
}

// Both are in line where a short message is sent.
inline void StreamWriter::Publish(MessageKind kind, const void* payload, size_t payload_bytes, uint64_t signature,
                                  size_t inline_bytes) {
  const uint64_t index = published_ & slot_mask_;
  Line& line = slots_[index].line;
  CopySmall(line.payload, static_cast<const std::byte*>(payload), payload_bytes);
  line.signature = signature;
  line.stamp.store(Stamp(++published_, kind, inline_bytes), std::memory_order_release);
  ring_head_at_[index] = ring_head_;
}

inline void StreamWriter::PublishShort(const std::byte* data, size_t bytes, uint64_t signature) {
  if (bytes <= kInlineBytes) {
    Publish(MessageKind::kInline, data, bytes, signature, bytes);
  } else {
    PublishInSlot(data, bytes, signature);
  }
}

Progress StreamWriter::TrySendQuietly(SendOperation& operation) {
  OperationState state = OperationState::Load(operation.state);
  if (state.phase == Phase::kNew) {
    state = {Phase::kWaiting, ++tickets_};
    state.Store(operation.state);
  }
  if (state.phase == Phase::kPosted) return CheckConfirmed(operation, state.value);
  if (state.phase == Phase::kWaiting && state.value != turn_) return Progress::kBlocked;
  if (!HasSlot()) [[unlikely]] {
    if (!Refresh(&operation.error)) return Progress::kFailed;
    if (!HasSlot()) return Progress::kBlocked;
  }
  if (operation.bytes > kSlotBytes) return SendLarge(operation);
  PublishShort(operation.data, operation.bytes, operation.signature);
  ++turn_;
  return Progress::kDone;
}

bool StreamWriter::Send(const std::byte* data, size_t bytes, uint64_t signature) {
  if (turn_ != tickets_ + 1 || bytes > kSlotBytes) return false;  // an operation is before it
  if (!HasSlot() && !FreesSlot()) [[unlikely]]
    return false;
  PublishShort(data, bytes, signature);
  ++tickets_;
  ++turn_;
  return true;
}

bool StreamWriter::FreesSlot() {
  absl::Status ignored;  // an operation finds it again
  return Refresh(&ignored) && HasSlot();
}

void StreamWriter::Prepare(size_t bytes) {
  const auto* slot = reinterpret_cast<const std::byte*>(&slots_[published_ & slot_mask_]);
  const size_t used = bytes <= kInlineBytes ? sizeof(Line) : sizeof(Line) + std::min(bytes, kSlotBytes);
  for (size_t at = 0; at < used; at += sizeof(Line)) PrefetchForWriting(slot + at);
}

void StreamWriter::PublishInSlot(const std::byte* data, size_t bytes, uint64_t signature) {
  std::memcpy(slots_[published_ & slot_mask_].payload, data, bytes);
  const uint64_t total = bytes;
  Publish(MessageKind::kSlot, &total, sizeof total, signature, 0);
}

Progress StreamWriter::SendLarge(SendOperation& operation) {
  if (operation.bytes > limits_.longest) {
    return Fail(operation,
                absl::InternalError("a message of " + std::to_string(operation.bytes) + " bytes where at most " +
                                    std::to_string(limits_.longest) + " are allowed"));
  }
  Bounce& bounce = operation.bytes < kLargeChunkFrom ? small_ : large_;
  if (OperationState::Load(operation.state).phase == Phase::kMoving) return SendChunk(operation, bounce);
  if (operation.bytes >= limits_.direct_from) {
    if (const std::optional<uint64_t> offset = segment_.OffsetOf(operation.data, operation.bytes)) {
      return Announce(operation, MessageKind::kDirect,
                      {.total = operation.bytes, .length = operation.bytes, .area_offset = *offset});
    }
  }
  if (chosen_for_ != turn_) {  // not again for each try of an operation that is blocked
    way_ = ChooseWay(operation.bytes);
    chosen_for_ = turn_;
  }
  if (way_ == Way::kRead) {
    return Announce(
        operation, MessageKind::kPrivate,
        {.total = operation.bytes, .length = operation.bytes, .position = reinterpret_cast<uintptr_t>(operation.data)});
  }
  if (operation.bytes <= kEagerBytes) return SendEager(operation);
  return SendChunk(operation, bounce);
}

// The readers take the payload from where it lies; the operation is finished when all have confirmed.
Progress StreamWriter::Announce(SendOperation& operation, MessageKind kind, const Descriptor& descriptor) {
  Publish(kind, &descriptor, sizeof descriptor, operation.signature, 0);
  OperationState{Phase::kPosted, published_}.Store(operation.state);
  ++turn_;
  return Progress::kMoved;
}

Progress StreamWriter::CheckConfirmed(SendOperation& operation, uint64_t number) {
  if (confirmed_ >= number) return Progress::kDone;
  if (!Refresh(&operation.error)) return Progress::kFailed;
  return confirmed_ >= number ? Progress::kDone : Progress::kBlocked;
}

// Every message that may be read is timed.
static_assert(WaySizeOf(kPrivateFrom) == 1 && WaySizeOf(kPrivateFrom - 1) == 0 && kSlotBytes <= kPastCacheFrom);
// Messages of one class are copied in parts of one size.
static_assert(WaySizeOf(kLargeChunkFrom) == 3 && WaySizeOf(kLargeChunkFrom - 1) == 2);

// The first reader's times stand for those of several.
Way StreamWriter::ChooseWay(size_t bytes) {
  timed_ = false;
  const bool is_short = WaySizeOf(bytes) == 0;
  if (bytes < kPastCacheFrom || readers_.empty()) return Way::kCopied;
  if (is_short && short_messages_++ % kShortRun != 0) return short_way_;
  PeerEndpoint& reader = readers_.front();
  if (reader.Attach() != Progress::kDone) return Way::kCopied;
  timed_ = true;
  const Ack& ack = reader.ack();
  const ToldTimes told{{ack.told[0].load(std::memory_order_relaxed), ack.told[1].load(std::memory_order_relaxed)}};
  const bool may_read = bytes >= limits_.private_from && told.can_read();
  const Way way = memory_.Choose(reader, bytes, told, may_read);
  if (is_short) short_way_ = way;
  return way;
}

void StreamWriter::CopyIn(const SendOperation& operation, std::byte* to, size_t bytes) {
  const std::byte* from = operation.data + operation.moved;
  const bool timed = timed_ && operation.moved == 0;
  const uint64_t before = timed ? memory_.Now() : 0;
  if (way_ == Way::kPastCache) {
    StreamCopy(to, from, bytes);
    // The message's line becomes visible only when these stores have left the CPU. On AMD that takes longer than the
    // copy itself, and the fence at the end of StreamCopy does not wait for it.
    if (timed) PublishFence();
  } else {
    std::memcpy(to, from, bytes);
  }
  if (timed) memory_.NoteCopiedIn(readers_.front(), way_, operation.bytes, memory_.Now() - before);
}

Progress StreamWriter::SendEager(SendOperation& operation) {
  if (ring_.data == nullptr) {
    absl::StatusOr<Area> area = own_.AllocateArea(kEagerRingBytes);
    if (!area.ok()) return Fail(operation, area.status());
    ring_ = *area;
  }
  const uint64_t bytes = PaddedEagerBytes(operation.bytes);
  const uint64_t at = ring_head_ % kEagerRingBytes;
  const uint64_t start = at + bytes > kEagerRingBytes ? ring_head_ + (kEagerRingBytes - at) : ring_head_;
  if (start + bytes - ring_tail_ > kEagerRingBytes) {
    if (!Refresh(&operation.error)) return Progress::kFailed;
    if (start + bytes - ring_tail_ > kEagerRingBytes) return Progress::kBlocked;
  }
  const uint64_t position = start % kEagerRingBytes;
  CopyIn(operation, ring_.data + position, operation.bytes);
  ring_head_ = start + bytes;
  const Descriptor descriptor{.total = operation.bytes,
                              .length = operation.bytes,
                              .area_offset = ring_.block.offset,
                              .area_bytes = kEagerRingBytes,
                              .position = position,
                              .past_cache = way_ == Way::kPastCache ? 1u : 0u};
  Publish(MessageKind::kEager, &descriptor, sizeof descriptor, operation.signature, 0);
  ++turn_;
  return Progress::kDone;
}

Progress StreamWriter::SendChunk(SendOperation& operation, Bounce& bounce) {
  const size_t area_bytes = kBounceBuffers * bounce.chunk_bytes;
  if (bounce.area.data == nullptr) {
    absl::StatusOr<Area> area = own_.AllocateArea(area_bytes);
    if (!area.ok()) return Fail(operation, area.status());
    bounce.area = *area;
  }
  const uint64_t buffer = bounce.next % kBounceBuffers;
  if (confirmed_ < bounce.used_by[buffer]) {
    if (!Refresh(&operation.error)) return Progress::kFailed;
    if (confirmed_ < bounce.used_by[buffer]) return Progress::kBlocked;
  }
  const size_t length = std::min(bounce.chunk_bytes, operation.bytes - operation.moved);
  const uint64_t position = buffer * bounce.chunk_bytes;
  CopyIn(operation, bounce.area.data + position, length);
  if (operation.moved == 0) reading_before_ns_ = memory_.reading_ns();
  const uint64_t reading_ns = memory_.reading_ns() - reading_before_ns_;
  const Descriptor descriptor{.total = operation.bytes,
                              .length = length,
                              .area_offset = bounce.area.block.offset,
                              .area_bytes = area_bytes,
                              .position = position,
                              .past_cache = way_ == Way::kPastCache ? 1u : 0u,
                              .reading_ns = static_cast<uint32_t>(std::min<uint64_t>(reading_ns, UINT32_MAX))};
  Publish(MessageKind::kBounce, &descriptor, sizeof descriptor, operation.signature, 0);
  bounce.used_by[buffer] = published_;
  ++bounce.next;
  operation.moved += length;
  if (operation.moved == operation.bytes) {
    ++turn_;
    return Progress::kDone;
  }
  OperationState{Phase::kMoving, 0}.Store(operation.state);
  return Progress::kMoved;
}

bool StreamWriter::Refresh(absl::Status* error) {
  uint64_t confirmed = published_;
  for (PeerEndpoint& reader : readers_) {
    switch (reader.Attach()) {
      case Progress::kDone:
        break;
      case Progress::kFailed:
        *error = reader.error();
        return false;
      default:
        return true;  // not there yet: has read nothing
    }
    const uint64_t messages = reader.ack().messages.load(std::memory_order_acquire);
    if (messages > published_) {
      *error = reader.error();
      return false;
    }
    confirmed = std::min(confirmed, messages);
  }
  if (confirmed > confirmed_) {
    confirmed_ = confirmed;
    ring_tail_ = ring_head_at_[(confirmed - 1) & slot_mask_];
  }
  return true;
}

void StreamWriter::Wake() {
  PublishFence();
  for (const PeerEndpoint& reader : readers_) reader.WakeAfterFence();
}

}  // namespace cohort::comm::shm
