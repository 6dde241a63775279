// The links of this process by their keys: those that the program has made, those that a peer has sent to before, and
// the keys of those that have ended, whose late frames are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/net/buffer_pool.h"
#include "cohort/comm/transport/net/link_key.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm::net {

// The base of a Link.
template <class Peer>
struct TableEntry {
  const LinkKey key;
  Peer* const peer;
  bool claimed = false;  // a handle of the program exists; until then frames are kept
};

// Links of one peer; a member of Peer.
template <class Link>
struct PeerLinks {
  size_t unclaimed = 0;  // links that it has sent to and that we have not made
  Link* last = nullptr;  // that a frame came for
};

// A Link is a TableEntry<Peer>. A Peer has `world_rank`, PeerLinks<Link> `links`, and `status`: why it has failed, or
// OK.
template <class Link, class Peer>
class LinkTable {
 public:
  using Maker = std::function<std::unique_ptr<Link>(const LinkKey& key, Peer& peer, BufferPool* buffers)>;
  explicit LinkTable(Maker maker) : maker_(std::move(maker)) {}
  // Called for every link that ends, before it leaves the table.
  void set_released(std::function<void(Link&)> released) { released_ = std::move(released); }

  // Null where there is none.
  Link* Find(const LinkKey& key) const {
    const auto found = links_.find(key);
    return found == links_.end() ? nullptr : found->second.get();
  }
  // The same for a frame of the peer's: mostly the link of the one before.
  Link* FindFor(const LinkKey& key, Peer& peer) const {
    if (peer.links.last == nullptr || peer.links.last->key != key) peer.links.last = Find(key);
    return peer.links.last;
  }
  // Whether this link will never be made: it has ended, or its group.
  bool Ended(const LinkKey& key) const { return ended_.contains(key) || ended_.contains(WholeGroup(key)); }

  // For Transport::Connect. A link counts whose frames came before the peer failed.
  absl::StatusOr<Link*> Connect(const LinkSpec& spec, Peer& peer) {
    const LinkKey key = {spec.group, spec.epoch, spec.lane, spec.peer_world_rank};
    if (!peer.status.ok() && Find(key) == nullptr) return peer.status;
    Link* link = Claim(key, peer);
    if (link == nullptr) return absl::InternalError("a link was made twice");
    return link;
  }
  // For the program; null: it exists already.
  Link* Claim(const LinkKey& key, Peer& peer) {
    Link* link = Find(key);
    if (link == nullptr) {
      link = Make(key, peer);
    } else if (link->claimed) {
      return nullptr;
    } else {
      --peer.links.unclaimed;
      const auto waiting = unclaimed_.find(WholeGroup(key));
      std::erase(waiting->second, key);
      if (waiting->second.empty()) unclaimed_.erase(waiting);
    }
    link->claimed = true;
    return link;
  }
  // For a frame that came first. kResourceExhausted: the peer has too many of these.
  absl::StatusOr<Link*> MakeUnclaimed(const LinkKey& key, Peer& peer) {
    if (peer.links.unclaimed >= kMostUnclaimed) {
      return absl::ResourceExhaustedError("rank " + std::to_string(peer.world_rank) + " has sent to " +
                                          std::to_string(kMostUnclaimed) + " groups that were not made here");
    }
    ++peer.links.unclaimed;
    unclaimed_[WholeGroup(key)].push_back(key);
    return Make(key, peer);
  }

  // The link's owner is gone.
  void Release(Link* link) {
    const LinkKey key = link->key;
    if (released_) released_(*link);
    if (link->peer->links.last == link) link->peer->links.last = nullptr;
    links_.erase(key);
    NoteEnded(key);
  }
  // Links of the group that were never made here are given up.
  void EndGroup(uint64_t group, uint32_t epoch) {
    const LinkKey whole = WholeGroup(group, epoch);
    NoteEnded(whole);
    const auto waiting = unclaimed_.find(whole);
    if (waiting == unclaimed_.end()) return;
    const std::vector<LinkKey> keys = std::move(waiting->second);
    unclaimed_.erase(waiting);
    for (const LinkKey& key : keys) {
      Link* link = Find(key);
      --link->peer->links.unclaimed;
      Release(link);
    }
  }
  // Releases all. A release may let frames in, for other links too.
  void Clear() {
    while (!links_.empty()) Release(links_.begin()->second.get());
    unclaimed_.clear();
  }

 private:
  static constexpr size_t kMostUnclaimed = 4096;  // of one peer
  static constexpr size_t kMostEnded = 1 << 16;   // remembered

  Link* Make(const LinkKey& key, Peer& peer) {
    return links_.insert_or_assign(key, maker_(key, peer, &buffers_)).first->second.get();
  }
  void NoteEnded(const LinkKey& key) {
    if (ended_.insert(key).second) ended_order_.push_back(key);
    if (ended_order_.size() > kMostEnded) {
      ended_.erase(ended_order_.front());
      ended_order_.pop_front();
    }
  }

  const Maker maker_;
  std::function<void(Link&)> released_;
  BufferPool buffers_;  // of all links
  std::unordered_map<LinkKey, std::unique_ptr<Link>, LinkKeyHash> links_;
  std::unordered_map<LinkKey, std::vector<LinkKey>, LinkKeyHash> unclaimed_;  // of links_, by their groups
  std::unordered_set<LinkKey, LinkKeyHash> ended_;                            // links, and groups
  std::deque<LinkKey> ended_order_;
};

}  // namespace cohort::comm::net
