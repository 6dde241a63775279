// Both directions of one link: order, flow control, signatures, and messages cut into pieces.
//
// Sending: a message gets the link's next sequence numbers, one a piece, when it is first tried, and pieces start in
// that order as far as the window allows. Receiving: a message's sequence numbers say which posted receive it belongs
// to. What arrives before its receive is posted waits here: short messages as copies, long ones as announcements.
//
// Used by the engine's owner only. Callbacks of the worker come in through OnMessage and the transfers' `done`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cohort/comm/transport/net/buffer_pool.h"
#include "cohort/comm/transport/net/link_table.h"
#include "cohort/comm/transport/net/ordered_link.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/comm/transport/ucx/peer.h"
#include "cohort/comm/transport/ucx/posted.h"
#include "cohort/comm/transport/ucx/wire.h"
#include "cohort/comm/transport/ucx/worker.h"

namespace cohort::comm::ucx {

class LinkState : public net::TableEntry<Peer> {
 public:
  LinkState(const net::LinkKey& link_key, int self, Peer& of, Worker* worker, net::BufferPool* buffers,
            PeerKeeper* keeper, size_t* pending_operations);
  ~LinkState();  // Abandon() must have been called, or nothing be under way
  LinkState(const LinkState&) = delete;
  LinkState& operator=(const LinkState&) = delete;

  Progress TrySend(SendOperation& operation);
  Progress TryRecv(RecvOperation& operation);

  // A message for this link; arguments as MessageSink::OnMessage, the sender proved.
  bool OnMessage(const ParsedHeader& message, void* data, bool rendezvous);
  // Tells the peer what was consumed, if that is due and the peer can be reached. True when nothing is due any more.
  bool Report();

  // Forgets all operations and everything that has arrived. Afterwards neither they nor their memory are touched.
  // Drives the worker until UCX has let go of them: for PeerKeeper::DrainTime at most, then the connection is given up.
  void Abandon();

  bool report_owed = false;  // of net::OwedReports

 private:
  using Stage = PostedRecv::Stage;
  struct Early : net::EarlyFrame<MessageHeader> {
    void* descriptor = nullptr;  // of an announced piece, which has no data yet
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
  bool CheckSignature(PostedRecv& receive, const MessageHeader& header);
  void Consumed(const MessageHeader& header);
  void OnConsumed(uint64_t consumed);
  bool Keep(const MessageHeader& header, void* data, bool rendezvous);
  void Discard(Early& early);
  Progress RecvResult(PostedRecv& receive, bool moved);

  // True when a failed operation may be handed back: UCX no longer uses its memory.
  bool MayFail(const Pieces& pieces) const;
  // Detaches UCX from the operation.
  void Detach(Pieces& pieces);
  void Forget(PostedSend& send);
  void Forget(PostedRecv& receive);
  // A failed operation needs a reason: its own, or its peer's.
  void RequireReason();
  void Drain();
  static void OnSendDone(void* self, Transfer* transfer, ucs_status_t status);
  static void OnRecvDone(void* self, Transfer* transfer, ucs_status_t status);
  void TransferFailed(Pieces& pieces, ucs_status_t status);

  const int self_;
  Worker* const worker_;
  const WireLimits limits_;
  net::BufferPool* const buffers_;
  PeerKeeper* const keeper_;
  bool abandoned_ = false;

  net::MessageQueue<PostedSend> sends_;
  net::SendCredit send_credit_;
  uint64_t last_sent_signature_ = 0;

  net::MessageQueue<PostedRecv> receives_;
  net::ReceiveCredit receive_credit_;
  ArrivalWindow arrived_;
  net::EarlyFrames<Early> early_;  // by sequence
  net::CallHistory history_;
};

}  // namespace cohort::comm::ucx
