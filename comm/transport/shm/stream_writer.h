// The sending half of a link or fan-out: one ordered stream of messages, read by one peer or by several.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/comm/transport/shm/copy_ring.h"
#include "cohort/comm/transport/shm/endpoint.h"
#include "cohort/comm/transport/shm/layout.h"
#include "cohort/comm/transport/shm/way/stream_way.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::shm {

// Limits of one stream, in bytes of a message.
struct StreamLimits {
  size_t longest = SIZE_MAX;           // more is refused
  size_t direct_from = kDirectFrom;    // from here on readers take memory of the segment from where it lies
  size_t private_from = kPrivateFrom;  // from here on readers fetch private memory themselves, where they can
  size_t* grown_rings = nullptr;       // bytes that the rank may yet spend on larger rings; null: none
};

class StreamWriter {
 public:
  // The endpoint, whose slots this writer owns, the views of its readers and `ways` outlive it.
  StreamWriter(runtime::Segment& segment, OwnEndpoint& own, std::vector<PeerEndpoint>& readers, RankWays& ways,
               const StreamLimits& limits);
  ~StreamWriter();
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  // See OutgoingWay::arrivals.
  Arrivals& arrivals() { return outgoing_.arrivals(); }

  // See Link::TrySend.
  Progress TrySend(SendOperation& operation) {
    const uint64_t before = published_;
    const Progress progress = TrySendQuietly(operation);
    if (published_ != before) Wake();
    return progress;
  }
  // The same, but leaves sleeping readers asleep until Wake.
  Progress TrySendQuietly(SendOperation& operation);
  // See Link::Prepare.
  void Prepare(size_t bytes);
  // Wakes the readers that sleep. The fence waits for the message's line to be this CPU's own, which takes as long as
  // some 300 instructions: a caller that has something else to do does it first.
  void Wake();

 private:
  Progress SendLarge(SendOperation& operation);
  Progress Announce(SendOperation& operation, MessageKind kind, const Descriptor& descriptor);
  Progress SendParts(SendOperation& operation);
  Progress SendPart(SendOperation& operation);
  Progress CheckConfirmed(SendOperation& operation, uint64_t number);
  size_t MostPartBytes(size_t bytes, const CopyRing& ring) const;
  // Gets memory for the ring of this way, or more when it is time and there is any. An error: there is none at all.
  absl::Status ProvideRing(CopyRing& ring);
  // The way of the message whose turn it is, which is not read in place. The same when it is asked again.
  Way SetWay(size_t bytes);
  // The facts that the choice goes by, or nothing while the first reader is not there.
  std::optional<WayQuestion> AskFirstReader(size_t bytes);
  // Copies a part of the operation's payload into memory that is shared.
  void CopyIn(const SendOperation& operation, std::byte* to, size_t bytes);

  // Reads the readers' acks. False, and *error, when one of them is impossible.
  bool Refresh(absl::Status* error);
  bool HasSlot() const { return published_ - confirmed_ < slot_count_; }

  // At most kSlotBytes.
  void PublishShort(const std::byte* data, size_t bytes, uint64_t signature);
  void PublishInSlot(const std::byte* data, size_t bytes, uint64_t signature);
  void Publish(MessageKind kind, const void* payload, size_t payload_bytes, uint64_t signature, size_t inline_bytes);

  runtime::Segment& segment_;
  OwnEndpoint& own_;
  std::vector<PeerEndpoint>& readers_;
  const StreamLimits limits_;
  Slot* slots_;
  const uint64_t slot_count_;  // a power of two
  const uint64_t slot_mask_;

  uint64_t tickets_ = 0;    // operations seen so far
  uint64_t turn_ = 1;       // the operation that may put messages into the stream
  uint64_t published_ = 0;  // messages in the stream so far
  uint64_t confirmed_ = 0;  // messages that all readers are finished with

  CopyRing copied_;
  CopyRing past_cache_;
  uint64_t private_bytes_ = 0;  // sent so far, by whatever way
  size_t grown_bytes_ = 0;      // taken from limits_.grown_rings

  OutgoingWay outgoing_;
  uint64_t chosen_for_ = 0;  // the turn of its message
};

}  // namespace cohort::comm::shm
