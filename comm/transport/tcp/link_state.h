// The links of a process: both directions of each, the table of all, and the way of a frame to its link.
#pragma once

#include <cstddef>

#include "cohort/comm/transport/net/buffer_pool.h"
#include "cohort/comm/transport/net/link_table.h"
#include "cohort/comm/transport/tcp/connection.h"
#include "cohort/comm/transport/tcp/link_receiver.h"
#include "cohort/comm/transport/tcp/link_sender.h"
#include "cohort/comm/transport/tcp/peer.h"

namespace cohort::comm::tcp {

class LinkState : public net::TableEntry<Peer> {
 public:
  LinkState(const net::LinkKey& link_key, Peer& of, const FlowLimits& limits, net::BufferPool* buffers,
            size_t* pending_operations)
      : net::TableEntry<Peer>{link_key, &of},
        sender(key, &of, limits, pending_operations),
        receiver(key, &of, limits, buffers, pending_operations) {
    sender.set_receiver(&receiver);
  }

  LinkSender sender;
  LinkReceiver receiver;
};

using LinkTable = net::LinkTable<LinkState, Peer>;
// `pending_operations` counts the operations of all links and outlives the table.
LinkTable::Maker LinkMaker(const FlowLimits& limits, size_t* pending_operations);

// Finds the link of each frame of one peer's connection.
class FrameRouter : public FrameSink {
 public:
  // Both outlive it.
  FrameRouter(LinkTable* links, Peer* peer) : links_(links), peer_(peer) {}
  Choice OnFrame(const FrameHeader& header, const runtime::CallRecord* record, bool keep, bool again) override;

 private:
  LinkTable* const links_;
  Peer* const peer_;
};

}  // namespace cohort::comm::tcp
