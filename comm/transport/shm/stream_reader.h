// The receiving half of a link, or of one member's fan-out: reads a peer's stream of messages in order.
#pragma once

#include <array>
#include <cstdint>

#include "cohort/comm/transport/shm/endpoint.h"
#include "cohort/comm/transport/shm/layout.h"
#include "cohort/comm/transport/shm/private_memory.h"
#include "cohort/comm/transport/shm/way/stream_way.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::shm {

class StreamReader {
 public:
  // All references outlive the reader. It says in `own` how far it has read, as the peer's `own_source`. `memory` is
  // null where messages never lie in the peer's private memory.
  // `arrivals`: of the writer of the other direction, or null.
  StreamReader(runtime::Segment& segment, OwnEndpoint& own, PeerEndpoint& peer, PrivateMemory* memory,
               Arrivals* arrivals);

  // See Link::TryRecv.
  Progress TryRecv(RecvOperation& operation);

 private:
  Progress Attach(RecvOperation& operation);
  Progress TakeLarge(RecvOperation& operation, MessageKind kind, const Slot& slot);
  Progress TakeFromSlot(RecvOperation& operation, const Slot& slot);
  Progress TakeFromRing(RecvOperation& operation, const Descriptor& descriptor);
  // Both read memory that the sender keeps for it, and are kBlocked where the sender has closed its end meanwhile: what
  // they read may be anything, and the group's failure is on its way.
  Progress TakeDirect(RecvOperation& operation, const Descriptor& descriptor);
  Progress TakePrivate(RecvOperation& operation, const Descriptor& descriptor);
  // Puts `bytes` bytes of payload where they belong, after those that are there already.
  void Deliver(RecvOperation& operation, const std::byte* payload, size_t bytes);

  // kBlocked while the peer's record of the call may still be on its way.
  Progress FailMismatch(RecvOperation& operation, uint64_t peer_signature);
  Progress FailDamaged(RecvOperation& operation);
  Progress FailLength(RecvOperation& operation, uint64_t bytes);

  // The whole of a message that was copied or read has come. `sender_reading_ns`: Descriptor::reading_ns.
  void EndWay(uint64_t sender_reading_ns);
  // Finished with the current message.
  void NextMessage() { ++taken_; }
  void Acknowledge();

  runtime::Segment& segment_;
  OwnEndpoint& own_;
  PeerEndpoint& peer_;
  PrivateMemory* memory_;
  Ack& ack_;
  const Slot* slots_ = nullptr;  // the peer's, once attached
  const uint64_t slot_count_;    // a power of two
  const uint64_t slot_mask_;

  uint64_t mismatch_since_ns_ = 0;  // when another signature was found; 0: none
  IncomingWay incoming_;
  uint64_t tickets_ = 0;
  uint64_t turn_ = 1;
  uint64_t taken_ = 0;                // messages finished with
  uint64_t acknowledged_ = 0;         // of those, the ones the writer knows of
  uint64_t ring_unacknowledged_ = 0;  // bytes

  // The writer's latest rings, by Descriptor::past_cache.
  struct Ring {
    runtime::SegmentBlock block;
    const std::byte* data = nullptr;
  };
  std::array<Ring, 2> rings_;
};

}  // namespace cohort::comm::shm
