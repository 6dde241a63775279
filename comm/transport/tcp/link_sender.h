// The sending direction of one link: messages in order, cut into frames as far as the receiver has granted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cohort/comm/transport/net/link_key.h"
#include "cohort/comm/transport/net/ordered_link.h"
#include "cohort/comm/transport/tcp/connection.h"
#include "cohort/comm/transport/tcp/peer.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm::tcp {

class LinkReceiver;

class LinkSender : public FrameOwner {
 public:
  LinkSender(const net::LinkKey& key, Peer* peer, const FlowLimits& limits, size_t* pending_operations)
      : key_(key), peer_(peer), limits_(limits), messages_(pending_operations), credit_(limits.window) {}
  ~LinkSender() override { Abandon(); }
  LinkSender(const LinkSender&) = delete;
  LinkSender& operator=(const LinkSender&) = delete;
  // The other direction, whose grant every frame reports.
  void set_receiver(LinkReceiver* receiver) { receiver_ = receiver; }

  Progress TrySend(SendOperation& operation);
  // The peer has granted sending up to this place.
  void OnGrant(uint64_t granted);
  // Forgets all operations; afterwards neither they nor their memory are touched.
  void Abandon();

  void FrameSent() override;

 private:
  struct Posted : net::PostedMessage<SendOperation> {
    uint64_t framed = 0;  // bytes in frames that were begun
    bool begun = false;   // a frame was: of a message without data too
    bool done = false;
    bool moved = false;
  };
  enum class Pumped : uint8_t { kOn, kBlocked };

  void Pump();
  Pumped BeginFrame(Posted& posted);
  Connection::Written WriteFrame(FrameHeader& header, const runtime::CallRecord* call, const std::byte* data);
  void SetStalled(bool stalled);
  Progress Result(Posted& posted);
  void Forget(Posted& posted);

  const net::LinkKey key_;
  Peer* const peer_;
  const FlowLimits limits_;
  LinkReceiver* receiver_ = nullptr;

  net::MessageQueue<Posted> messages_;
  net::SendCredit credit_;
  Posted* in_flight_ = nullptr;  // its latest frame is taken partly
  bool stalled_ = false;         // waits for a grant
  uint64_t last_signature_ = 0;
};

}  // namespace cohort::comm::tcp
