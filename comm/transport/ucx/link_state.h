// Both directions of one link: order, flow control, signatures, and messages cut into pieces.
//
// Sending: a message gets the link's next sequence numbers, one a piece, when it is first tried, and pieces start in
// that order as far as the window allows. Receiving: a message's sequence numbers say which posted receive it belongs
// to. What arrives before its receive is posted waits here: short messages as copies, long ones as announcements.
//
// Used by the engine's owner only. Callbacks of the worker come in through OnMessage and the transfers' `done`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "cohort/comm/transport/net/buffer_pool.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/comm/transport/ucx/peer.h"
#include "cohort/comm/transport/ucx/posted.h"
#include "cohort/comm/transport/ucx/wire.h"
#include "cohort/comm/transport/ucx/worker.h"

namespace cohort::comm::ucx {

struct LinkKey {
  uint64_t group = 0;
  uint32_t epoch = 0;
  uint32_t lane = 0;
  int32_t peer = 0;  // world rank

  friend bool operator==(const LinkKey&, const LinkKey&) = default;
};
struct LinkKeyHash {
  size_t operator()(const LinkKey& key) const {
    uint64_t hash = key.group ^ (uint64_t{key.epoch} << 32 | key.lane) * 0x9e3779b97f4a7c15u;
    hash ^= static_cast<uint64_t>(key.peer) * 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 29);
  }
};

class LinkState {
 public:
  LinkState(const LinkKey& key, int self, Peer* peer, Worker* worker, net::BufferPool* buffers, PeerKeeper* keeper,
            size_t* pending_operations);
  ~LinkState();  // Abandon() must have been called, or nothing be under way
  LinkState(const LinkState&) = delete;
  LinkState& operator=(const LinkState&) = delete;

  const LinkKey& key() const { return key_; }
  Peer& peer() { return *peer_; }

  Progress TrySend(SendOperation& operation);
  Progress TryRecv(RecvOperation& operation);

  // A message for this link; arguments as MessageSink::OnMessage, the sender proved.
  bool OnMessage(const ParsedHeader& message, void* data, bool rendezvous);
  // Tells the peer what was consumed, if that is due and the peer can be reached. True when nothing is due any more.
  bool ReportConsumed();

  // Forgets all operations and everything that has arrived. Afterwards neither they nor their memory are touched.
  // Drives the worker until UCX has let go of them: for PeerKeeper::DrainTime at most, then the connection is given up.
  void Abandon();

  // Whether a handle of the program exists; until then arrivals are kept.
  bool claimed = false;
  bool report_queued = false;  // the transport's note

 private:
  using Stage = PostedRecv::Stage;
  struct Arrival {
    MessageHeader header;
    void* descriptor = nullptr;   // of an announced piece
    net::BufferPool::Block copy;  // of a short message
  };
  enum class Delivery { kDone, kNoRoom, kRefused };

  void PumpSends();
  bool StartPiece(PostedSend& send);
  const std::byte* Copy(Transfer* transfer, const std::byte* data, uint64_t bytes);
  Progress SendResult(PostedSend& send);

  bool AdvanceRecv(PostedRecv& receive);
  Delivery Deliver(PostedRecv& receive, const MessageHeader& header, void* data, bool rendezvous);
  Delivery StartReceive(PostedRecv& receive, const MessageHeader& header, void* descriptor);
  void DeliverNow(RecvOperation& operation, const void* data, uint64_t offset, uint64_t bytes);
  bool report_due() const { return consumed_ - reported_ >= limits_.window / 2; }
  bool CheckSignature(PostedRecv& receive, const MessageHeader& header);
  void Consumed(const MessageHeader& header);
  void Drop(Arrival& arrival);
  Progress RecvResult(PostedRecv& receive, bool moved);

  // True when a failed operation may be handed back: UCX no longer uses its memory.
  bool MayFail(Posted& posted);
  // Detaches UCX from the operation and the operation from this link.
  void Detach(Posted& posted);
  void Forget(PostedSend& send);
  void Forget(PostedRecv& receive);
  // A failed operation needs a reason: its own, or its peer's.
  void RequireReason();
  void Drain();
  static void OnSendDone(void* self, Transfer* transfer, ucs_status_t status);
  static void OnRecvDone(void* self, Transfer* transfer, ucs_status_t status);
  void TransferFailed(Posted& posted, ucs_status_t status);

  const LinkKey key_;
  const int self_;
  Peer* const peer_;
  Worker* const worker_;
  const WireLimits limits_;
  net::BufferPool* const buffers_;
  PeerKeeper* const keeper_;
  size_t* const pending_operations_;  // of all links: posted and not handed back
  bool abandoned_ = false;

  // Lists whose nodes are reused by splicing.
  std::list<PostedSend> sends_, spare_sends_;
  std::list<PostedRecv> receives_, spare_receives_;
  std::list<Arrival> arrivals_, spare_arrivals_;  // by sequence

  uint64_t next_send_ = 0;
  uint64_t sent_ = 0;          // Charge() of all pieces started
  uint64_t acknowledged_ = 0;  // of which the peer has consumed
  uint64_t last_sent_signature_ = 0;

  uint64_t next_receive_ = 0;
  ArrivalWindow arrived_;
  uint64_t waiting_charge_ = 0;  // of arrivals_
  uint64_t consumed_ = 0;
  uint64_t reported_ = 0;
  // The calls that the latest arrivals belong to. Several, because a peer whose call needs nothing from this side goes
  // on to later ones before the message that shows the mismatch is looked at.
  std::array<runtime::CallRecord, 8> records_{};
  size_t next_record_ = 0;
};

}  // namespace cohort::comm::ucx
