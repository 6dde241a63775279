// The two views of an endpoint (layout.h): its owner's and a peer's, and how an endpoint ends.
//
// An endpoint outlives the link or fan-out that made it: a peer may come later and read what was sent, or may be
// reading right now. Each side, when it is done, says so in its peers' blocks (and waits for those that are not there
// yet); an owner frees its block once it has told all peers and all peers have told it, or are gone. Until then the
// block stays in the Graveyard.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/shm/layout.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::shm {

// A mapped block of the segment.
struct Area {
  runtime::SegmentBlock block;
  std::byte* data = nullptr;
};

// The owner's view.
class OwnEndpoint {
 public:
  struct Probe {  // a word of the owner's private memory by which peers find out whether they can read it
    uint64_t address = 0;
    uint64_t value = 0;
    uint64_t gate = 0;  // EndpointHeader::gate_address
  };
  // Allocates, fills in and publishes the block. kAlreadyExists: the key is in use or not forgotten yet;
  // kResourceExhausted: the segment's or directory's.
  static absl::StatusOr<std::unique_ptr<OwnEndpoint>> Create(runtime::Segment& segment, uint64_t key, uint32_t slots,
                                                             uint32_t sources, Probe probe);
  OwnEndpoint(const OwnEndpoint&) = delete;
  OwnEndpoint& operator=(const OwnEndpoint&) = delete;

  Slot* slots() const { return slots_; }
  uint32_t slot_count() const { return slot_count_; }
  Ack& ack(int source) const { return acks_[source]; }
  EndpointHeader& header() const { return *header_; }
  // True when the peer with this source number has said that it will never touch the block again.
  bool PeerDone(int source) const {
    return header_->peers_done[source / 64].load(std::memory_order_acquire) >> (source % 64) & 1;
  }

  // Gives the endpoint up: a peer that reads the owner's memory from now on sees that what it read may be anything. The
  // owner's later stores come after this in every peer's eyes.
  void Close() {
    header_->closed.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  // A block for payloads, zeroed and freed with the endpoint.
  absl::StatusOr<Area> AllocateArea(size_t bytes);

  // Takes the block out of the directory and gives all memory back. No peer may touch it any more.
  void Free();

 private:
  OwnEndpoint(runtime::Segment& segment, uint64_t key) : segment_(segment), key_(key) {}

  runtime::Segment& segment_;
  uint64_t key_;
  EndpointHeader* header_ = nullptr;
  Ack* acks_ = nullptr;
  Slot* slots_ = nullptr;
  uint32_t slot_count_ = 0;
  std::vector<runtime::SegmentBlock> blocks_;
};

// A peer's view: found in the owner's directory when first needed.
class PeerEndpoint {
 public:
  struct Address {
    int world_rank = -1;
    int local_rank = -1;
    uint64_t key = 0;
    uint32_t slots = 0;    // that both sides agree on
    uint32_t sources = 0;  // likewise
    int source = 0;        // which of them the caller is
    int own_source = 0;    // which source the peer is in the caller's endpoint
  };
  PeerEndpoint(runtime::Segment& segment, const Address& address)
      : segment_(&segment), address_(address), control_(&segment.control(address.local_rank)) {}

  // kDone: the block is mapped. kBlocked: the owner has not made it yet. kFailed: it is damaged; see error().
  Progress Attach() { return slots_ != nullptr ? Progress::kDone : AttachSlowly(); }
  absl::Status error() const;

  const Address& address() const { return address_; }
  // Valid once attached.
  const Slot* slots() const { return slots_; }
  const Ack& ack() const { return *ack_; }
  const EndpointHeader& header() const { return *header_; }
  // Whether the owner has given the endpoint up. After a read of its memory: false says that the data were still its
  // operation's.
  bool Closed() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return header_->closed.load(std::memory_order_acquire) != 0;
  }

  // Wakes the owner's process if it sleeps. The caller has published and then called PublishFence().
  void WakeAfterFence() const {
    if (control_->parked.load(std::memory_order_relaxed) != 0) segment_->Wake(address_.local_rank);
  }
  // Tells the owner that the caller will never touch the block again; the view is then dead. False when the owner has
  // not made it yet. Nobody is told by a rank that has finalised: it counts as gone, and the block may be another's.
  bool SayDone();
  // The owner has finalised or been lost: it reads and writes no more.
  bool gone() const { return Ended(*control_); }

 private:
  static bool Ended(const runtime::RankControl& control) {
    return control.state.load(std::memory_order_acquire) >= runtime::kRankFinalised;
  }
  Progress AttachSlowly();

  runtime::Segment* segment_;
  Address address_;
  runtime::RankControl* control_;
  const Slot* slots_ = nullptr;
  const Ack* ack_ = nullptr;
  EndpointHeader* header_ = nullptr;
};

// The endpoints that have no link any more and may still be in a peer's use.
class Graveyard {
 public:
  // Takes over the own block and the views of its peers' blocks.
  void Bury(std::unique_ptr<OwnEndpoint> own, std::vector<PeerEndpoint> peers);
  // Frees what nobody uses any more. Cheap when there is nothing.
  void Sweep();
  size_t size() const { return graves_.size(); }

 private:
  struct Grave {
    std::unique_ptr<OwnEndpoint> own;
    std::vector<PeerEndpoint> untold;  // peers that we have not told yet
    std::vector<PeerEndpoint> peers;   // to see which of them are gone
  };
  static bool Settled(Grave& grave);

  std::vector<Grave> graves_;
};

}  // namespace cohort::comm::shm
