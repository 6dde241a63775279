#include "cohort/comm/transport/tcp/link_table.h"

namespace cohort::comm::tcp {
namespace {

// Links remembered after their end.
constexpr size_t kMostEnded = 1 << 16;

// Stands for all links of a group; no link has it.
LinkKey WholeGroup(uint64_t group, uint32_t epoch) { return {group, epoch, 0, -1}; }
LinkKey WholeGroup(const LinkKey& key) { return WholeGroup(key.group, key.epoch); }

}  // namespace

LinkState* LinkTable::Find(const LinkKey& key) {
  const auto found = links_.find(key);
  return found == links_.end() ? nullptr : found->second.get();
}

bool LinkTable::Ended(const LinkKey& key) const { return ended_.contains(key) || ended_.contains(WholeGroup(key)); }

LinkState* LinkTable::Make(const LinkKey& key, Peer& peer) {
  std::unique_ptr<LinkState>& link = links_[key];
  link = std::make_unique<LinkState>(key, &peer, limits_, &buffers_, pending_operations_);
  return link.get();
}

LinkState* LinkTable::Claim(const LinkKey& key, Peer& peer) {
  LinkState* link = Find(key);
  if (link == nullptr) {
    link = Make(key, peer);
  } else if (link->claimed) {
    return nullptr;
  } else {
    --peer.unclaimed_links;
    const auto waiting = unclaimed_.find(WholeGroup(key));
    std::erase(waiting->second, key);
    if (waiting->second.empty()) unclaimed_.erase(waiting);
  }
  link->claimed = true;
  return link;
}

LinkState* LinkTable::MakeUnclaimed(const LinkKey& key, Peer& peer) {
  if (peer.unclaimed_links >= kMostUnclaimed) return nullptr;
  ++peer.unclaimed_links;
  unclaimed_[WholeGroup(key)].push_back(key);
  return Make(key, peer);
}

void LinkTable::Release(LinkState* link) {
  const LinkKey key = link->key;
  if (released_) released_(*link);
  links_.erase(key);
  NoteEnded(key);
}

void LinkTable::NoteEnded(const LinkKey& key) {
  if (ended_.insert(key).second) ended_order_.push_back(key);
  if (ended_order_.size() > kMostEnded) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

void LinkTable::EndGroup(uint64_t group, uint32_t epoch) {
  const LinkKey whole = WholeGroup(group, epoch);
  NoteEnded(whole);
  const auto waiting = unclaimed_.find(whole);
  if (waiting == unclaimed_.end()) return;
  const std::vector<LinkKey> keys = std::move(waiting->second);
  unclaimed_.erase(waiting);
  for (const LinkKey& key : keys) {
    LinkState* link = Find(key);
    --link->peer->unclaimed_links;
    Release(link);
  }
}

void LinkTable::Clear() {
  for (auto& [key, link] : links_) {
    if (released_) released_(*link);
  }
  links_.clear();
  unclaimed_.clear();
}

}  // namespace cohort::comm::tcp
