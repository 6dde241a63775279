// The layout of shared memory for one endpoint of a link or fan-out. An endpoint is one block in its owner's arena:
//
//   [header, 384 B] [acks, 32 B for each source] [slots, 1152 B each]
//
// The owner sends through the slots and says in `acks` how far it has read each of its sources. Peers write one thing
// only: `peers_done`, when they will never touch the block again. Areas for payloads longer than a line are blocks of
// their own, made when first needed and named by every message that uses them.
//
// A slot is a line of 64 bytes that announces a message, and room for a short payload behind it. Slots begin 128 bytes
// apart or more: two in one pair of lines cost 60 ns a call, because the adjacent-line prefetcher takes the line away
// that the owner writes next. Up to 48 bytes of payload, signature and sequence share the line, since a second line
// costs 15 to 25 ns; the payload comes first and the sequence last. Up to 1024 bytes lie behind the line, where the
// reader finds them without having read a descriptor, which would cost it another 70 to 150 ns.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::shm {

inline constexpr uint64_t kEndpointMagic = 0x3730'4d48'5354'5243;  // "CRTSHM07": changes with the layout
inline constexpr size_t kSlotStride = 128;
inline constexpr size_t kInlineBytes = 48;
inline constexpr size_t kSlotBytes = kMostShortBytes;  // of payload behind the line
inline constexpr uint32_t kLinkSlots = 16;
inline constexpr uint32_t kFanoutSlots = 32;
// The slot of a stream's message `number`, counted from 0, where there are `mask` + 1: from the last to the first. A
// reader's CPU that sees ascending lines fetches those behind the message as well. They belong to an older message, not
// to the next one, for which the writer's CPU has its lines ready. 1 KiB one way, far: 0.66 to 0.77 us instead of 1.0.
constexpr uint64_t SlotOf(uint64_t number, uint64_t mask) { return ~number & mask; }
static_assert(SlotOf(0, 15) == 15 && SlotOf(15, 15) == 0 && SlotOf(16, 15) == 15);

// A ring of bytes for payloads that are copied: in once, and out (or into a reduction) once. Long messages go in parts,
// so that both sides copy at the same time.
//
// The first ring is small. A link or fan-out that has carried much gets one of about twice the level 2 cache: when the
// writer comes round again, both caches have forgotten the lines. Else each line is still in the reader's cache, and
// the writer has to take it away before it can write, which takes longer than the copy: 7.7 us for 64 KiB instead
// of 4.8, and 47 instead of 15 for 512 KiB, where the CPUs share a level 3 cache.
inline constexpr size_t kFirstRingBytes = 64 * 1024;
inline constexpr size_t kLeastGrownRingBytes = 512 * 1024;
inline constexpr size_t kMostRingBytes = 4 * 1024 * 1024;
inline constexpr size_t kGrownPastCacheRingBytes = 1024 * 1024;  // four parts would do: no cache holds its lines
inline constexpr size_t kGrowRingAfter = 256 * 1024;             // bytes of private messages, copied or not
inline constexpr size_t kGrownRingsBytes = 64 << 20;             // of a rank's open links and fan-outs
// Any size that a reader accepts. It maps the ring, so a wild size would take memory.
constexpr bool IsRingSize(uint64_t bytes) {
  return bytes >= kFirstRingBytes && bytes <= kMostRingBytes && (bytes & (bytes - 1)) == 0;
}

// A message of up to kPartBytes is one part. Of longer ones that go one way a part is a quarter, so that the first
// part, which the reader waits for, and the last one, which only the reader copies, weigh little; but no longer than is
// of use. Those that no level 2 cache holds take 15 % less time in the longest parts.
inline constexpr size_t kPartBytes = 8 * 1024;
static_assert(kPartBytes <= kMostInlineBytes);
inline constexpr size_t kLongPartBytes = 32 * 1024;
inline constexpr size_t kMostPartBytes = 128 * 1024;  // of messages from 1 MiB on, and of those that meet
constexpr size_t PartBytes(size_t message_bytes, size_t ring_bytes) {
  size_t most = message_bytes < (1 << 20) ? kLongPartBytes : kMostPartBytes;
  if (ring_bytes / 4 < most) most = ring_bytes / 4;
  size_t part = kPartBytes;
  while (part < most && part < message_bytes / 4) part *= 2;
  return part;
}
// The same where both ranks send at the same time (Arrivals::Meets). Both copy in before they copy out, so short parts
// gain nothing, and past the cache the writer waits after each until its stores have left the CPU. 64 KiB each way,
// plain copies between near CPUs 4.3 us in one part and 4.6 in four; past the cache between far ones 6.6 and 7.7, 512
// KiB 42 in parts of 128 KiB and 46 in parts of 32.
constexpr size_t ExchangePartBytes(size_t ring_bytes) {
  return ring_bytes / 4 < kMostPartBytes ? ring_bytes / 4 : kMostPartBytes;
}
// A reader confirms parts at the latest after this many bytes. Room for one more block is then always found:
// unconfirmed parts (< a quarter) + confirmed parts of the oldest block, which is freed as a whole (< a quarter) +
// skipped at the end of the ring (< a quarter) + the block (<= a quarter).
constexpr size_t RingAckBytes(size_t ring_bytes) { return ring_bytes / 4; }

// Parts keep off each other's pairs of lines.
constexpr uint64_t PaddedPartBytes(uint64_t bytes) { return (bytes + kSlotStride - 1) / kSlotStride * kSlotStride; }

// From here on a message whose memory lies in the segment is read in place: two copies less for one confirmation more.
inline constexpr size_t kDirectFrom = 2 * 1024;
// If ranks take turns on CPUs the confirmation may cost a turn: what is one part is copied.
inline constexpr size_t kDirectFromSharingCpus = kPartBytes + 1;
// The same for private memory, where the kernel permits it: the call takes 0.7 us, two copies with plain stores through
// a ring as long from 4 KiB on where caches are far; a little later where both sides have something to say and copy
// side by side. Fan-outs to several readers never.
inline constexpr size_t kPrivateFrom = 6 * 1024;
// If ranks take turns on CPUs: as above. Messages that go through the ring need no confirmation at all.
inline constexpr size_t kPrivateFromSharingCpus = kPartBytes + 1;
// One step of a direct read or of process_vm_readv: bounds the time of one Try call and the staging buffer.
inline constexpr size_t kPieceBytes = 256 * 1024;
inline constexpr size_t kFirstPieceBytes = 64 * 1024;  // of a message that is copied in

// Stores that bypass the cache: worth it for copied output that does not fit in it anyway.
inline constexpr size_t kStreamFrom = 4 * 1024 * 1024;

enum class MessageKind : uint8_t {
  kInline = 0,   // payload in the line
  kCopied = 1,   // payload, or a part of it, in the ring
  kDirect = 2,   // payload lies in the segment; read there, then confirmed
  kPrivate = 3,  // payload lies in the sender's private memory; read by process_vm_readv, then confirmed
  kSlot = 4,     // payload behind the line
};

// The payload of every kind but kInline, in the line. kSlot has `total` only. Written by a peer: nothing in it is
// trusted.
struct Descriptor {
  uint64_t total = 0;        // bytes of the whole message
  uint64_t length = 0;       // bytes of this part
  uint64_t area_offset = 0;  // kCopied: the ring in the segment; kDirect: the payload
  uint64_t area_bytes = 0;
  uint64_t position = 0;    // kCopied: of this part in the ring; kPrivate: the sender's address
  uint32_t past_cache = 0;  // kCopied: 1: copied in past the sender's cache
  uint32_t reading_ns = 0;  // kCopied: the sender's reads since the first part (way/message_time.h)
};
static_assert(sizeof(Descriptor) <= kInlineBytes);

struct alignas(64) Line {
  std::byte payload[kInlineBytes];
  uint64_t signature;
  // [kind: 4 | inline bytes: 8 | number of the message in its stream, from 1: 48]. Stored last, with release order:
  // what precedes it in the line is valid once a reader finds the number it waits for.
  std::atomic<uint64_t> stamp;
};
static_assert(sizeof(Line) == 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

struct alignas(kSlotStride) Slot {
  Line line;
  std::byte payload[kSlotBytes];  // of kSlot
};
static_assert(sizeof(Slot) == 9 * kSlotStride);

inline constexpr uint64_t kNumberMask = (uint64_t{1} << 48) - 1;
inline constexpr uint64_t Stamp(uint64_t number, MessageKind kind, size_t inline_bytes) {
  return (number & kNumberMask) | static_cast<uint64_t>(inline_bytes) << 48 | static_cast<uint64_t>(kind) << 56;
}
inline constexpr MessageKind KindOf(uint64_t stamp) { return static_cast<MessageKind>(stamp >> 56); }
inline constexpr size_t InlineBytesOf(uint64_t stamp) { return stamp >> 48 & 0xff; }

// How far the owner of the endpoint has read one of its sources.
struct alignas(32) Ack {
  std::atomic<uint64_t> messages;  // all up to and including this number are finished with
  // Whether the owner can read the source's private memory, and how long messages took (ToldTimes in way/way_time.h).
  std::atomic<uint64_t> told[3];
};
static_assert(sizeof(Ack) == 32);

struct alignas(kSlotStride) EndpointHeader {
  uint64_t magic;
  uint64_t key;
  uint32_t slots;
  uint32_t sources;
  int32_t pid;
  uint32_t unused;
  uint64_t probe_address;  // of probe_value in the owner's private memory
  uint64_t probe_value;
  uint64_t gate_address;  // fan-outs: of a page of private memory that peers write before they write elsewhere; or 0
  // 1: the owner has given the link or fan-out up, and its memory may hold anything. Readers that took data from there
  // look at this word afterwards; peers that come later find it set. See also member_memory.h.
  std::atomic<uint32_t> closed;
  // 1: the owner is touching other members' memory. On a line of its own, since it changes with every piece.
  alignas(kSlotStride) std::atomic<uint32_t> inside;
  // Written by peers: a bit for each that will never touch this block again.
  alignas(kSlotStride) std::atomic<uint64_t> peers_done[runtime::kMaxLocalRanks / 64];
};
static_assert(sizeof(EndpointHeader) == 3 * kSlotStride);

constexpr size_t AckBytes(uint32_t sources) {
  return (sources * sizeof(Ack) + kSlotStride - 1) / kSlotStride * kSlotStride;
}
constexpr size_t EndpointBytes(uint32_t slots, uint32_t sources) {
  return sizeof(EndpointHeader) + AckBytes(sources) + slots * sizeof(Slot);
}

// Directory keys: a hash of what both sides know. Never 0 or ~0, which the directory keeps for itself.
inline uint64_t EndpointKey(uint64_t group, uint32_t epoch, int32_t owner, int32_t other, uint16_t lane) {
  const uint64_t words[] = {kEndpointMagic, group, epoch,
                            static_cast<uint64_t>(static_cast<uint32_t>(owner)) << 32 | static_cast<uint32_t>(other),
                            lane};
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (uint64_t word : words) {
    hash ^= word;
    hash *= 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return (hash | 1) == ~uint64_t{0} ? 1 : hash | 1;
}
inline uint64_t LinkKey(const LinkSpec& spec, int32_t owner, int32_t other) {
  return EndpointKey(spec.group, spec.epoch, owner, other, spec.lane);
}
// `other` is no rank: a fan-out has all members on its other side.
inline uint64_t FanoutKey(const FanoutSpec& spec, int32_t owner) {
  return EndpointKey(spec.group, spec.epoch, owner, -1, spec.lane);
}

}  // namespace cohort::comm::shm
