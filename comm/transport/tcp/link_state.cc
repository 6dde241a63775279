#include "cohort/comm/transport/tcp/link_state.h"

#include <memory>

namespace cohort::comm::tcp {

LinkTable::Maker LinkMaker(const FlowLimits& limits, size_t* pending_operations) {
  return [limits, pending_operations](const net::LinkKey& key, Peer& peer, net::BufferPool* buffers) {
    return std::make_unique<LinkState>(key, peer, limits, buffers, pending_operations);
  };
}

FrameSink::Choice FrameRouter::OnFrame(const FrameHeader& header, const runtime::CallRecord* record, bool keep,
                                       bool again) {
  const net::LinkKey key = {header.group, header.epoch, header.lane, peer_->world_rank};
  LinkState* link = links_->FindFor(key, *peer_);
  const bool grant = (header.flags & kGrantOnly) != 0;
  if (link == nullptr) {
    if (grant || links_->Ended(key)) return {Choice::kDrop, nullptr};
    if (!keep) return {Choice::kHold, nullptr};
    const absl::StatusOr<LinkState*> made = links_->MakeUnclaimed(key, *peer_);
    if (!made.ok()) {
      peer_->keeper->FailPeer(*peer_, made.status());
      return {Choice::kStop, nullptr};
    }
    link = *made;
  }
  link->sender.OnGrant(header.granted);
  if (grant) return {Choice::kDrop, nullptr};
  return link->receiver.OnFrame(header, record, keep, again);
}

}  // namespace cohort::comm::tcp
