#include "cohort/comm/transport/shm/stream_writer.h"

#include <unistd.h>

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

// Twice the level 2 cache, as a power of two within limits.
size_t GrownRingBytes() {
  static const size_t bytes = [] {
    const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const size_t twice = cache > 0 ? 2 * static_cast<size_t>(cache) : 2 << 20;
    return std::bit_ceil(std::clamp(twice, kLeastGrownRingBytes, kMostRingBytes));
  }();
  return bytes;
}

}  // namespace

StreamWriter::StreamWriter(runtime::Segment& segment, OwnEndpoint& own, std::vector<PeerEndpoint>& readers,
                           RankWays& ways, const StreamLimits& limits)
    : segment_(segment),
      own_(own),
      readers_(readers),
      limits_(limits),
      slots_(own.slots()),
      slot_count_(own.slot_count()),
      slot_mask_(slot_count_ - 1),
      copied_(own, own.slot_count()),
      past_cache_(own, own.slot_count()),
      outgoing_(ways) {
  COHORT_CHECK(std::has_single_bit(slot_count_));
}

StreamWriter::~StreamWriter() {
  if (grown_bytes_ > 0) *limits_.grown_rings += grown_bytes_;
}

// Both are in line where a short message is sent.
inline void StreamWriter::Publish(MessageKind kind, const void* payload, size_t payload_bytes, uint64_t signature,
                                  size_t inline_bytes) {
  const uint64_t index = SlotOf(published_, slot_mask_);
  Line& line = slots_[index].line;
  CopySmall(line.payload, static_cast<const std::byte*>(payload), payload_bytes);
  line.signature = signature;
  line.stamp.store(Stamp(++published_, kind, inline_bytes), std::memory_order_release);
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

void StreamWriter::Prepare(size_t bytes) {
  const auto* slot = reinterpret_cast<const std::byte*>(&slots_[SlotOf(published_, slot_mask_)]);
  const bool in_slot = bytes > kInlineBytes && bytes <= kSlotBytes;
  const size_t used = in_slot ? sizeof(Line) + bytes : sizeof(Line);
  for (size_t at = 0; at < used; at += sizeof(Line)) PrefetchForWriting(slot + at);
}

void StreamWriter::PublishInSlot(const std::byte* data, size_t bytes, uint64_t signature) {
  std::memcpy(slots_[SlotOf(published_, slot_mask_)].payload, data, bytes);
  const uint64_t total = bytes;
  Publish(MessageKind::kSlot, &total, sizeof total, signature, 0);
}

Progress StreamWriter::SendLarge(SendOperation& operation) {
  if (operation.bytes > limits_.longest) {
    return Fail(operation,
                absl::InternalError("a message of " + std::to_string(operation.bytes) + " bytes where at most " +
                                    std::to_string(limits_.longest) + " are allowed"));
  }
  if (OperationState::Load(operation.state).phase == Phase::kMoving) return SendParts(operation);
  if (operation.bytes >= limits_.direct_from) {
    if (const std::optional<uint64_t> offset = segment_.OffsetOf(operation.data, operation.bytes)) {
      return Announce(operation, MessageKind::kDirect,
                      {.total = operation.bytes, .length = operation.bytes, .area_offset = *offset});
    }
  }
  if (SetWay(operation.bytes) == Way::kRead) {
    return Announce(
        operation, MessageKind::kPrivate,
        {.total = operation.bytes, .length = operation.bytes, .position = reinterpret_cast<uintptr_t>(operation.data)});
  }
  return SendParts(operation);
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

Way StreamWriter::SetWay(size_t bytes) {
  if (chosen_for_ == turn_) return outgoing_.way();
  chosen_for_ = turn_;
  private_bytes_ += bytes;
  return outgoing_.Next(bytes, readers_.size() == 1, [this, bytes] { return AskFirstReader(bytes); });
}

std::optional<WayQuestion> StreamWriter::AskFirstReader(size_t bytes) {
  if (readers_.empty()) return std::nullopt;
  PeerEndpoint& reader = readers_.front();
  if (reader.Attach() != Progress::kDone) return std::nullopt;
  const Ack& ack = reader.ack();
  WayQuestion question{.reader = static_cast<size_t>(reader.address().local_rank),
                       .ring_bytes = {copied_.bytes(), past_cache_.bytes()}};
  for (size_t i = 0; i < question.told.words.size(); ++i) {
    question.told.words[i] = ack.told[i].load(std::memory_order_relaxed);
  }
  question.may_read = bytes >= limits_.private_from && question.told.can_read();
  return question;
}

void StreamWriter::CopyIn(const SendOperation& operation, std::byte* to, size_t bytes) {
  const std::byte* from = operation.data + operation.moved;
  const uint64_t began_ns = outgoing_.BeginPart();
  if (outgoing_.way() == Way::kPastCache) {
    StreamCopy(to, from, bytes);
    // The message's line becomes visible only when these stores have left the CPU. On AMD that takes longer than the
    // copy itself, and the fence at the end of StreamCopy does not wait for it.
    if (began_ns != 0) PublishFence();
  } else {
    std::memcpy(to, from, bytes);
  }
  outgoing_.EndPart(began_ns, bytes);
}

absl::Status StreamWriter::ProvideRing(CopyRing& ring) {
  const size_t grown = &ring == &copied_ ? GrownRingBytes() : kGrownPastCacheRingBytes;
  if (ring.bytes() == grown) return absl::OkStatus();
  if (private_bytes_ >= kGrowRingAfter && limits_.grown_rings != nullptr && *limits_.grown_rings >= grown) {
    if (ring.Provide(grown).ok()) {
      *limits_.grown_rings -= grown;
      grown_bytes_ += grown;
      return absl::OkStatus();
    }
    private_bytes_ = 0;  // asked again later
  }
  return ring.bytes() == 0 ? ring.Provide(kFirstRingBytes) : absl::OkStatus();
}

// As many parts as there is room for, up to a piece: where both sides send, their messages are in flight sooner than if
// each took a part of the other's in between (512 KiB in 26 us instead of 31). The first piece is shorter, unless one
// part is longer, since a reader that sleeps is woken behind it. Past the cache one part at a time is quicker (54 us
// instead of 64).
Progress StreamWriter::SendParts(SendOperation& operation) {
  const size_t until = operation.moved + (operation.moved == 0 ? kFirstPieceBytes : kPieceBytes);
  Progress progress = SendPart(operation);
  while (outgoing_.way() == Way::kCopied && progress == Progress::kMoved && operation.moved < until && HasSlot()) {
    progress = SendPart(operation);
    if (progress == Progress::kBlocked) return Progress::kMoved;
  }
  return progress;
}

size_t StreamWriter::MostPartBytes(size_t bytes, const CopyRing& ring) const {
  return outgoing_.meets() ? ExchangePartBytes(ring.bytes()) : PartBytes(bytes, ring.bytes());
}

Progress StreamWriter::SendPart(SendOperation& operation) {
  CopyRing& ring = outgoing_.way() == Way::kPastCache ? past_cache_ : copied_;
  if (operation.moved == 0) {
    if (absl::Status status = ProvideRing(ring); !status.ok()) return Fail(operation, std::move(status));
  }
  const size_t rest = operation.bytes - operation.moved;
  const size_t length = std::min(MostPartBytes(operation.bytes, ring), rest);
  std::optional<uint64_t> position = ring.Place(rest);
  if (!position.has_value()) {
    if (!Refresh(&operation.error)) return Progress::kFailed;
    position = ring.Place(rest);
    if (!position.has_value()) return Progress::kBlocked;
  }
  if (operation.moved == 0) outgoing_.Begin(/*parted=*/operation.bytes > kPartBytes);
  CopyIn(operation, ring.At(*position), length);
  ring.Take(length, published_ + 1);
  const Descriptor descriptor{
      .total = operation.bytes,
      .length = length,
      .area_offset = ring.offset(),
      .area_bytes = ring.bytes(),
      .position = *position,
      .past_cache = outgoing_.way() == Way::kPastCache ? 1u : 0u,
      .reading_ns = static_cast<uint32_t>(std::min<uint64_t>(outgoing_.reading_ns(), UINT32_MAX))};
  Publish(MessageKind::kCopied, &descriptor, sizeof descriptor, operation.signature, 0);
  operation.moved += length;
  if (operation.moved == operation.bytes) {
    outgoing_.End();
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
    copied_.Confirmed(confirmed);
    past_cache_.Confirmed(confirmed);
  }
  return true;
}

void StreamWriter::Wake() {
  PublishFence();
  for (const PeerEndpoint& reader : readers_) reader.WakeAfterFence();
}

}  // namespace cohort::comm::shm
