#include "cohort/comm/transport/ucx/link_state.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

namespace cohort::comm::ucx {
namespace {

using Clock = std::chrono::steady_clock;

// After a peer was given up, how long its operations wait for UCX to let go of their memory. It does so within a few
// rounds of progress once the endpoint is closed.
constexpr std::chrono::milliseconds kLetGoLimit(200);

}  // namespace

LinkState::LinkState(const net::LinkKey& link_key, int self, Peer& of, Worker* worker, net::BufferPool* buffers,
                     PeerKeeper* keeper, size_t* pending_operations)
    : net::TableEntry<Peer>{link_key, &of},
      self_(self),
      worker_(worker),
      limits_(worker->limits()),
      buffers_(buffers),
      keeper_(keeper),
      sends_(pending_operations),
      send_credit_(limits_.window),
      receives_(pending_operations),
      receive_credit_(limits_.window),
      early_(buffers, limits_.window) {}

LinkState::~LinkState() {
  for (Early& early : early_) Discard(early);
}

void LinkState::Detach(Pieces& pieces) {
  for (Transfer*& transfer : pieces.in_flight) {
    if (transfer != nullptr) transfer->done = nullptr;
    transfer = nullptr;
  }
}

void LinkState::Forget(PostedSend& send) {
  Detach(send);
  sends_.Remove(send);
}

void LinkState::Forget(PostedRecv& receive) {
  Detach(receive);
  for (Stage& stage : receive.stages) {
    buffers_->Put(std::move(stage.block));
    stage = Stage();
  }
  receives_.Remove(receive);
}

void LinkState::RequireReason() {
  if (peer->state == PeerState::kFailed) return;
  keeper_->FailPeer(
      *peer, absl::UnavailableError("the connection to rank " + std::to_string(peer->world_rank) + " failed (UCX)"));
}

bool LinkState::MayFail(const Pieces& pieces) const {
  if (!pieces.InFlight()) return true;
  return peer->state == PeerState::kFailed && peer->endpoint == nullptr && Clock::now() - peer->failed_at > kLetGoLimit;
}

void LinkState::TransferFailed(Pieces& pieces, ucs_status_t status) {
  pieces.failed = true;
  if (peer->state == PeerState::kFailed) return;
  keeper_->FailPeer(*peer, ToStatus(worker_->api(), status, "lost rank " + std::to_string(peer->world_rank)));
}

// ---- sending ----

Progress LinkState::TrySend(SendOperation& operation) {
  auto* send = static_cast<PostedSend*>(operation.state);
  if (send == nullptr) {
    if (peer->state == PeerState::kFailed) {
      operation.error = peer->status;
      return Progress::kFailed;
    }
    send = &sends_.Add(operation, limits_.Pieces(operation.bytes));
    keeper_->WantConnection(*peer);
  }
  PumpSends();
  return SendResult(*send);
}

Progress LinkState::SendResult(PostedSend& send) {
  SendOperation& operation = *send.operation;
  if (send.finished == send.pieces) {  // though the peer may have ended since
    Forget(send);
    return Progress::kDone;
  }
  if (send.failed || peer->state == PeerState::kFailed) {
    RequireReason();
    if (!MayFail(send)) return Progress::kBlocked;
    operation.error = peer->status;
    Forget(send);
    return Progress::kFailed;
  }
  return std::exchange(send.moved, false) ? Progress::kMoved : Progress::kBlocked;
}

void LinkState::PumpSends() {
  if (peer->state != PeerState::kConnected) return;
  for (PostedSend& send : sends_) {
    while (send.started < send.pieces) {
      if (!StartPiece(send)) return;
    }
  }
}

bool LinkState::StartPiece(PostedSend& send) {
  const SendOperation& operation = *send.operation;
  const uint64_t offset = send.started * limits_.piece_bytes;
  const uint64_t bytes = send.pieces == 1 ? operation.bytes : std::min(limits_.piece_bytes, operation.bytes - offset);
  const uint64_t charge = limits_.Charge(bytes);
  if (charge > send_credit_.allowed() || !send.HasRoom()) return false;

  Transfer* transfer = worker_->transfers().New();
  MessageHeader& header = transfer->wire.header;
  header = MessageHeader();
  header.from = self_;
  header.epoch = key.epoch;
  header.group = key.group;
  header.lane = key.lane;
  header.piece_bytes = static_cast<uint32_t>(bytes);
  header.sequence = send.first + send.started;
  header.signature = operation.signature;
  header.message_bytes = operation.bytes;
  header.offset = offset;
  header.consumed = receive_credit_.consumed();
  receive_credit_.Report(receive_credit_.granted());
  if (operation.call != nullptr && operation.signature != last_sent_signature_) {
    // The first message of an operation on this link carries the whole call, so that a mismatch can name both.
    header.flags = kHasRecord;
    transfer->wire.record = *operation.call;
    last_sent_signature_ = operation.signature;
  }
  header.tag = TagOf(peer->send_key, header);
  send_credit_.Send(charge);
  peer->outstanding += charge;
  ++send.started;
  send.moved = true;
  transfer->done = &LinkState::OnSendDone;
  transfer->owner = &send;
  const std::byte* data = operation.data + offset;
  if (peer->outstanding > worker_->socket_bytes()) data = Copy(transfer, data, bytes);
  const ucs_status_t status = worker_->Send(peer->endpoint, transfer, data, bytes);
  if (status == UCS_OK) {
    ++send.finished;
  } else if (status == UCS_INPROGRESS) {
    send.AddTransfer(transfer);
  } else {
    TransferFailed(send, status);
    return false;
  }
  return true;
}

// The sockets may be full: from the user's memory UCX would send when the peer reads, and Abandon() would wait for
// that.
const std::byte* LinkState::Copy(Transfer* transfer, const std::byte* data, uint64_t bytes) {
  transfer->pool = buffers_;
  transfer->copy = buffers_->Get(std::max<uint64_t>(bytes, 1));
  if (bytes > 0) std::memcpy(transfer->copy.data.get(), data, bytes);
  return transfer->copy.data.get();
}

// The transfer's owner is the posted operation, which knows no link; Forget() detaches it before it is reused.
void LinkState::OnSendDone(void* owner, Transfer* transfer, ucs_status_t status) {
  auto* send = static_cast<PostedSend*>(owner);
  send->DropTransfer(transfer);
  send->moved = true;
  if (status != UCS_OK) {
    send->failed = true;
  } else {
    ++send->finished;
  }
}

bool LinkState::Report() {
  if (abandoned_ || !receive_credit_.report_due() || peer->state == PeerState::kFailed) return true;
  keeper_->WantConnection(*peer);
  if (peer->state != PeerState::kConnected) return false;
  Transfer* transfer = worker_->transfers().New();
  MessageHeader& header = transfer->wire.header;
  header = MessageHeader();
  header.flags = kCreditOnly;
  header.from = self_;
  header.epoch = key.epoch;
  header.group = key.group;
  header.lane = key.lane;
  header.consumed = receive_credit_.consumed();
  header.tag = TagOf(peer->send_key, header);
  receive_credit_.Report(receive_credit_.granted());
  const ucs_status_t status = worker_->Send(peer->endpoint, transfer, nullptr, 0);
  if (status != UCS_OK && status != UCS_INPROGRESS) {
    keeper_->FailPeer(*peer, ToStatus(worker_->api(), status, "lost rank " + std::to_string(peer->world_rank)));
  }
  return true;
}

// ---- the end ----

void LinkState::Abandon() {
  abandoned_ = true;
  OnConsumed(send_credit_.sent());
  for (Early& early : early_) Discard(early);
  early_.Clear();
  Drain();
  while (!sends_.empty()) Forget(sends_.front());
  while (!receives_.empty()) Forget(receives_.front());
}

void LinkState::Drain() {
  const auto in_flight = [this] {
    const auto is = [](const Pieces& pieces) { return pieces.InFlight(); };
    return std::any_of(sends_.begin(), sends_.end(), is) || std::any_of(receives_.begin(), receives_.end(), is);
  };
  const auto drive = [&](std::chrono::nanoseconds limit) {
    const runtime::Deadline deadline = runtime::Deadline::After(limit);
    while (in_flight() && !deadline.passed()) {
      if (!worker_->Progress(16)) worker_->Sleep(std::chrono::milliseconds(1));
    }
  };
  if (peer->state != PeerState::kFailed) drive(keeper_->DrainTime());
  if (!in_flight()) return;
  keeper_->FailPeer(*peer, absl::UnavailableError("rank " + std::to_string(peer->world_rank) +
                                                  " did not let go of an abandoned operation; connection closed"));
  keeper_->CloseFailed();
  drive(kLetGoLimit);
}

// ---- receiving ----

Progress LinkState::TryRecv(RecvOperation& operation) {
  auto* receive = static_cast<PostedRecv*>(operation.state);
  if (receive == nullptr) {
    receive = &receives_.Add(operation, limits_.Pieces(operation.bytes));
  }
  const bool moved = AdvanceRecv(*receive);
  return RecvResult(*receive, moved);
}

Progress LinkState::RecvResult(PostedRecv& receive, bool moved) {
  RecvOperation& operation = *receive.operation;
  if (!receive.failed && receive.finished == receive.pieces) {
    Forget(receive);
    return Progress::kDone;
  }
  if (receive.failed || peer->state == PeerState::kFailed) {
    receive.failed = true;
    if (operation.error.ok()) RequireReason();
    if (!MayFail(receive)) return Progress::kBlocked;
    if (operation.error.ok()) operation.error = peer->status;
    Forget(receive);
    return Progress::kFailed;
  }
  return moved || std::exchange(receive.moved, false) ? Progress::kMoved : Progress::kBlocked;
}

bool LinkState::AdvanceRecv(PostedRecv& receive) {
  bool moved = false;
  RecvOperation& operation = *receive.operation;
  for (auto early = early_.begin(); early != early_.end() && !receive.failed;) {
    if (early->header.sequence >= receive.first + receive.pieces) break;
    if (!receive.Covers(early->header.sequence)) {
      ++early;
      continue;
    }
    const bool rendezvous = early->descriptor != nullptr;
    void* data = rendezvous ? early->descriptor : early->data.data.get();
    const Delivery delivery = Deliver(receive, early->header, data, rendezvous);
    if (delivery == Delivery::kNoRoom) break;
    if (delivery == Delivery::kDone) early->descriptor = nullptr;  // taken over
    Discard(*early);
    early = early_.Remove(early);
    moved = true;
  }
  // After the next pieces were asked for: the network is busy while this computes.
  for (Stage& stage : receive.stages) {
    if (stage.state != Stage::kFull || receive.failed) continue;
    DeliverNow(operation, stage.block.data.get(), stage.offset, stage.bytes);
    stage.state = Stage::kFree;
    ++receive.finished;
    moved = true;
  }
  return moved;
}

bool LinkState::CheckSignature(PostedRecv& receive, const MessageHeader& header) {
  RecvOperation& operation = *receive.operation;
  const uint64_t index = header.sequence - receive.first;
  if (header.signature == operation.signature && header.message_bytes == operation.bytes &&
      header.offset == (receive.pieces == 1 ? 0 : index * limits_.piece_bytes)) {
    return true;
  }
  receive.failed = true;
  history_.Mismatch(peer->world_rank, header.signature, header.message_bytes, &operation);
  return false;
}

LinkState::Delivery LinkState::Deliver(PostedRecv& receive, const MessageHeader& header, void* data, bool rendezvous) {
  if (receive.failed || !CheckSignature(receive, header)) return Delivery::kRefused;
  if (rendezvous) {
    const Delivery delivery = StartReceive(receive, header, data);
    if (delivery != Delivery::kDone) return delivery;
  } else {
    DeliverNow(*receive.operation, data, header.offset, header.piece_bytes);
    ++receive.finished;
  }
  receive.moved = true;
  Consumed(header);
  return Delivery::kDone;
}

LinkState::Delivery LinkState::StartReceive(PostedRecv& receive, const MessageHeader& header, void* descriptor) {
  RecvOperation& operation = *receive.operation;
  if (!receive.HasRoom()) return Delivery::kNoRoom;
  if (peer->state == PeerState::kFailed) return Delivery::kRefused;
  std::byte* target = operation.data + header.offset;
  size_t index = kMostInFlight;
  if (operation.reduce != nullptr) {
    index = 0;
    while (index < kMostInFlight && receive.stages[index].state != Stage::kFree) ++index;
    if (index == kMostInFlight) return Delivery::kNoRoom;
    Stage& stage = receive.stages[index];
    if (stage.block.data == nullptr) stage.block = buffers_->Get(limits_.piece_bytes);
    stage.offset = header.offset;
    stage.bytes = header.piece_bytes;
    stage.state = Stage::kFilling;
    target = stage.block.data.get();
  }
  Transfer* transfer = worker_->transfers().New();
  transfer->done = &LinkState::OnRecvDone;
  transfer->owner = &receive;
  transfer->index = index;
  const ucs_status_t status = worker_->Receive(transfer, descriptor, target, header.piece_bytes);
  ++receive.started;
  if (status == UCS_INPROGRESS) {
    receive.AddTransfer(transfer);
  } else if (status != UCS_OK) {
    TransferFailed(receive, status);
  } else if (index < kMostInFlight) {
    receive.stages[index].state = Stage::kFull;
  } else {
    ++receive.finished;
  }
  return Delivery::kDone;
}

void LinkState::OnRecvDone(void* owner, Transfer* transfer, ucs_status_t status) {
  auto* receive = static_cast<PostedRecv*>(owner);
  receive->DropTransfer(transfer);
  receive->moved = true;
  if (status != UCS_OK) {
    receive->failed = true;
  } else if (transfer->index < kMostInFlight) {
    receive->stages[transfer->index].state = Stage::kFull;
  } else {
    ++receive->finished;
  }
}

void LinkState::DeliverNow(RecvOperation& operation, const void* data, uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  net::BufferPool::Block aligned;
  if (operation.reduce != nullptr && reinterpret_cast<uintptr_t>(data) % operation.element_bytes != 0) {
    aligned = buffers_->Get(bytes);
    std::memcpy(aligned.data.get(), data, bytes);
    data = aligned.data.get();
  }
  net::Deliver(operation, offset, static_cast<const std::byte*>(data), bytes);
  buffers_->Put(std::move(aligned));
}

void LinkState::Consumed(const MessageHeader& header) {
  receive_credit_.Consume(limits_.Charge(header.piece_bytes));
  if (receive_credit_.report_due() && !Report()) keeper_->ReportLater(*this);
}

// The peer has consumed that much of what was sent.
void LinkState::OnConsumed(uint64_t consumed) {
  const uint64_t granted = consumed + limits_.window;
  if (consumed > send_credit_.sent() || granted <= send_credit_.granted()) return;
  peer->outstanding -= granted - send_credit_.granted();
  send_credit_.Grant(granted);
}

bool LinkState::OnMessage(const ParsedHeader& message, void* data, bool rendezvous) {
  const MessageHeader& header = message.header;
  OnConsumed(header.consumed);
  if (abandoned_ || (header.flags & kCreditOnly) != 0 || !arrived_.IsNew(header.sequence)) return false;
  if (message.has_record) history_.Add(message.record);
  if (PostedRecv* receive = receives_.Find(header.sequence); receive != nullptr) {
    const Delivery delivery = Deliver(*receive, header, data, rendezvous);
    if (delivery != Delivery::kNoRoom) return rendezvous && delivery == Delivery::kDone;
  }
  return Keep(header, data, rendezvous);
}

// Keeps a piece that has no receive, or whose receive has no room now. Returns whether its descriptor is kept.
bool LinkState::Keep(const MessageHeader& header, void* data, bool rendezvous) {
  auto place = early_.end();
  if (!early_.empty() && header.sequence <= early_.back().header.sequence) {
    place = std::find_if(early_.begin(), early_.end(),
                         [&header](const Early& other) { return other.header.sequence > header.sequence; });
  }
  const size_t bytes = rendezvous ? 0 : header.piece_bytes;
  Early* early = early_.Add(place, header, limits_.Charge(header.piece_bytes), bytes);
  if (early == nullptr) {
    keeper_->FailPeer(*peer, absl::InternalError("rank " + std::to_string(peer->world_rank) +
                                                 " sent more than this rank's window allows; connection closed"));
    return false;
  }
  if (rendezvous) early->descriptor = data;
  if (bytes > 0) std::memcpy(early->data.data.get(), data, bytes);
  return rendezvous;
}

void LinkState::Discard(Early& early) {
  if (early.descriptor != nullptr) worker_->Discard(std::exchange(early.descriptor, nullptr));
}

}  // namespace cohort::comm::ucx
