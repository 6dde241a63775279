// The links of this process by their keys: those that the program has made, those that a peer has sent to before, and
// the keys of those that have ended, whose late frames are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cohort/comm/transport/tcp/link_key.h"
#include "cohort/comm/transport/tcp/link_receiver.h"
#include "cohort/comm/transport/tcp/link_sender.h"
#include "cohort/comm/transport/tcp/peer.h"

namespace cohort::comm::tcp {

// Both directions of one link.
class LinkState {
 public:
  LinkState(const LinkKey& link_key, Peer* of, const FlowLimits& limits, net::BufferPool* buffers,
            size_t* pending_operations)
      : key(link_key),
        peer(of),
        sender(key, of, limits, pending_operations),
        receiver(key, of, limits, buffers, pending_operations) {
    sender.set_receiver(&receiver);
  }

  const LinkKey key;
  Peer* const peer;
  LinkSender sender;
  LinkReceiver receiver;
  bool claimed = false;  // a handle of the program exists; until then frames are kept
};

class LinkTable {
 public:
  LinkTable(const FlowLimits& limits, size_t* pending_operations)
      : limits_(limits), pending_operations_(pending_operations) {}

  // Null where there is none.
  LinkState* Find(const LinkKey& key);
  // Whether nobody will ever make this link: it has ended, or its group.
  bool Ended(const LinkKey& key) const;
  // For the program; null: it exists already.
  LinkState* Claim(const LinkKey& key, Peer& peer);
  // For a frame that came first; null: the peer has too many of these.
  LinkState* MakeUnclaimed(const LinkKey& key, Peer& peer);
  // The link's owner is gone. Its operations are abandoned.
  void Release(LinkState* link);
  // Links of the group that were never made here are given up.
  void EndGroup(uint64_t group, uint32_t epoch);
  // `released` is called for every link that goes.
  void set_released(std::function<void(LinkState&)> released) { released_ = std::move(released); }
  void Clear();

  static constexpr size_t kMostUnclaimed = 4096;  // of one peer

 private:
  LinkState* Make(const LinkKey& key, Peer& peer);
  void NoteEnded(const LinkKey& key);

  const FlowLimits limits_;
  size_t* const pending_operations_;
  net::BufferPool buffers_;
  std::function<void(LinkState&)> released_;
  std::unordered_map<LinkKey, std::unique_ptr<LinkState>, LinkKeyHash> links_;
  std::unordered_map<LinkKey, std::vector<LinkKey>, LinkKeyHash> unclaimed_;  // of links_, by their groups
  std::unordered_set<LinkKey, LinkKeyHash> ended_;                            // links, and groups
  std::deque<LinkKey> ended_order_;
};

}  // namespace cohort::comm::tcp
