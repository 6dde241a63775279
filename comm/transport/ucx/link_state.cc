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

LinkState::LinkState(const LinkKey& key, int self, Peer* peer, Worker* worker, net::BufferPool* buffers,
                     PeerKeeper* keeper, size_t* pending_operations)
    : key_(key),
      self_(self),
      peer_(peer),
      worker_(worker),
      limits_(worker->limits()),
      buffers_(buffers),
      keeper_(keeper),
      pending_operations_(pending_operations) {}

LinkState::~LinkState() {
  for (Arrival& arrival : arrivals_) Drop(arrival);
}

void LinkState::Detach(Posted& posted) {
  for (Transfer*& transfer : posted.in_flight) {
    if (transfer != nullptr) transfer->done = nullptr;
    transfer = nullptr;
  }
  --*pending_operations_;
}

void LinkState::Forget(PostedSend& send) {
  Detach(send);
  send.operation->state = nullptr;
  const auto found =
      std::find_if(sends_.begin(), sends_.end(), [&](const PostedSend& entry) { return &entry == &send; });
  spare_sends_.splice(spare_sends_.begin(), sends_, found);
}

void LinkState::Forget(PostedRecv& receive) {
  Detach(receive);
  receive.operation->state = nullptr;
  for (Stage& stage : receive.stages) {
    buffers_->Put(std::move(stage.block));
    stage = Stage();
  }
  const auto found =
      std::find_if(receives_.begin(), receives_.end(), [&](const PostedRecv& entry) { return &entry == &receive; });
  spare_receives_.splice(spare_receives_.begin(), receives_, found);
}

void LinkState::RequireReason() {
  if (peer_->state == PeerState::kFailed) return;
  keeper_->FailPeer(
      *peer_, absl::UnavailableError("the connection to rank " + std::to_string(peer_->world_rank) + " failed (UCX)"));
}

bool LinkState::MayFail(Posted& posted) {
  if (!posted.InFlight()) return true;
  return peer_->state == PeerState::kFailed && peer_->endpoint == nullptr &&
         Clock::now() - peer_->failed_at > kLetGoLimit;
}

void LinkState::TransferFailed(Posted& posted, ucs_status_t status) {
  posted.failed = true;
  if (peer_->state == PeerState::kFailed) return;
  keeper_->FailPeer(*peer_, ToStatus(worker_->api(), status, "lost rank " + std::to_string(peer_->world_rank)));
}

// ---- sending ----

Progress LinkState::TrySend(SendOperation& operation) {
  auto* send = static_cast<PostedSend*>(operation.state);
  if (send == nullptr) {
    if (peer_->state == PeerState::kFailed) {
      operation.error = peer_->status;
      return Progress::kFailed;
    }
    if (spare_sends_.empty()) spare_sends_.emplace_back();
    sends_.splice(sends_.end(), spare_sends_, spare_sends_.begin());
    send = &sends_.back();
    *send = PostedSend();
    send->operation = &operation;
    send->first = next_send_;
    send->pieces = limits_.Pieces(operation.bytes);
    next_send_ += send->pieces;
    operation.state = send;
    ++*pending_operations_;
    keeper_->WantConnection(*peer_);
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
  if (send.failed || peer_->state == PeerState::kFailed) {
    RequireReason();
    if (!MayFail(send)) return Progress::kBlocked;
    operation.error = peer_->status;
    Forget(send);
    return Progress::kFailed;
  }
  return std::exchange(send.moved, false) ? Progress::kMoved : Progress::kBlocked;
}

void LinkState::PumpSends() {
  if (peer_->state != PeerState::kConnected) return;
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
  if (sent_ + charge - acknowledged_ > limits_.window || !send.HasRoom()) return false;

  Transfer* transfer = worker_->transfers().New();
  MessageHeader& header = transfer->wire.header;
  header = MessageHeader();
  header.from = self_;
  header.epoch = key_.epoch;
  header.group = key_.group;
  header.lane = key_.lane;
  header.piece_bytes = static_cast<uint32_t>(bytes);
  header.sequence = send.first + send.started;
  header.signature = operation.signature;
  header.message_bytes = operation.bytes;
  header.offset = offset;
  header.consumed = consumed_;
  reported_ = consumed_;
  if (operation.call != nullptr && operation.signature != last_sent_signature_) {
    // The first message of an operation on this link carries the whole call, so that a mismatch can name both.
    header.flags = kHasRecord;
    transfer->wire.record = *operation.call;
    last_sent_signature_ = operation.signature;
  }
  header.tag = TagOf(peer_->send_key, header);
  sent_ += charge;
  peer_->outstanding += charge;
  ++send.started;
  send.moved = true;
  transfer->done = &LinkState::OnSendDone;
  transfer->owner = &send;
  const std::byte* data = operation.data + offset;
  if (peer_->outstanding > worker_->socket_bytes()) data = Copy(transfer, data, bytes);
  const ucs_status_t status = worker_->Send(peer_->endpoint, transfer, data, bytes);
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

bool LinkState::ReportConsumed() {
  if (abandoned_ || !report_due() || peer_->state == PeerState::kFailed) return true;
  keeper_->WantConnection(*peer_);
  if (peer_->state != PeerState::kConnected) return false;
  Transfer* transfer = worker_->transfers().New();
  MessageHeader& header = transfer->wire.header;
  header = MessageHeader();
  header.flags = kCreditOnly;
  header.from = self_;
  header.epoch = key_.epoch;
  header.group = key_.group;
  header.lane = key_.lane;
  header.consumed = consumed_;
  header.tag = TagOf(peer_->send_key, header);
  reported_ = consumed_;
  const ucs_status_t status = worker_->Send(peer_->endpoint, transfer, nullptr, 0);
  if (status != UCS_OK && status != UCS_INPROGRESS) {
    keeper_->FailPeer(*peer_, ToStatus(worker_->api(), status, "lost rank " + std::to_string(peer_->world_rank)));
  }
  return true;
}

// ---- the end ----

void LinkState::Abandon() {
  abandoned_ = true;
  peer_->outstanding -= sent_ - acknowledged_;
  acknowledged_ = sent_;
  for (Arrival& arrival : arrivals_) Drop(arrival);
  arrivals_.clear();
  Drain();
  while (!sends_.empty()) Forget(sends_.front());
  while (!receives_.empty()) Forget(receives_.front());
}

void LinkState::Drain() {
  const auto in_flight = [this] {
    const auto is = [](const Posted& posted) { return posted.InFlight(); };
    return std::any_of(sends_.begin(), sends_.end(), is) || std::any_of(receives_.begin(), receives_.end(), is);
  };
  const auto drive = [&](std::chrono::nanoseconds limit) {
    const runtime::Deadline deadline = runtime::Deadline::After(limit);
    while (in_flight() && !deadline.passed()) {
      if (!worker_->Progress(16)) worker_->Sleep(std::chrono::milliseconds(1));
    }
  };
  if (peer_->state != PeerState::kFailed) drive(keeper_->DrainTime());
  if (!in_flight()) return;
  keeper_->FailPeer(*peer_, absl::UnavailableError("rank " + std::to_string(peer_->world_rank) +
                                                   " did not let go of an abandoned operation; connection closed"));
  keeper_->CloseFailed();
  drive(kLetGoLimit);
}

// ---- receiving ----

Progress LinkState::TryRecv(RecvOperation& operation) {
  auto* receive = static_cast<PostedRecv*>(operation.state);
  if (receive == nullptr) {
    if (spare_receives_.empty()) spare_receives_.emplace_back();
    receives_.splice(receives_.end(), spare_receives_, spare_receives_.begin());
    receive = &receives_.back();
    *receive = PostedRecv();
    receive->operation = &operation;
    receive->first = next_receive_;
    receive->pieces = limits_.Pieces(operation.bytes);
    next_receive_ += receive->pieces;
    operation.state = receive;
    ++*pending_operations_;
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
  if (receive.failed || peer_->state == PeerState::kFailed) {
    receive.failed = true;
    if (operation.error.ok()) RequireReason();
    if (!MayFail(receive)) return Progress::kBlocked;
    if (operation.error.ok()) operation.error = peer_->status;
    Forget(receive);
    return Progress::kFailed;
  }
  return moved || std::exchange(receive.moved, false) ? Progress::kMoved : Progress::kBlocked;
}

bool LinkState::AdvanceRecv(PostedRecv& receive) {
  bool moved = false;
  RecvOperation& operation = *receive.operation;
  for (auto arrival = arrivals_.begin(); arrival != arrivals_.end() && !receive.failed;) {
    if (arrival->header.sequence >= receive.first + receive.pieces) break;
    if (!receive.Covers(arrival->header.sequence)) {
      ++arrival;
      continue;
    }
    const bool rendezvous = arrival->descriptor != nullptr;
    void* data = rendezvous ? arrival->descriptor : arrival->copy.data.get();
    const Delivery delivery = Deliver(receive, arrival->header, data, rendezvous);
    if (delivery == Delivery::kNoRoom) break;
    waiting_charge_ -= limits_.Charge(arrival->header.piece_bytes);
    if (delivery == Delivery::kDone) arrival->descriptor = nullptr;  // taken over
    Drop(*arrival);
    const auto next = std::next(arrival);
    spare_arrivals_.splice(spare_arrivals_.begin(), arrivals_, arrival);
    arrival = next;
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
  operation.mismatch = true;
  operation.peer_signature = header.signature;
  for (const runtime::CallRecord& record : records_) {
    const uint64_t without_length = runtime::SignatureWithLength(header.signature, header.message_bytes);
    if (runtime::Carries(record, header.signature) || runtime::Carries(record, without_length)) {
      operation.peer_call = record;
    }
  }
  operation.error = absl::FailedPreconditionError(
      "rank " + std::to_string(peer_->world_rank) + " sent a message of another call (" +
      std::to_string(header.message_bytes) + " bytes where " + std::to_string(operation.bytes) + " are expected)");
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
  if (peer_->state == PeerState::kFailed) return Delivery::kRefused;
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
  if (operation.reduce == nullptr) {
    std::memcpy(operation.data + offset, data, bytes);
    return;
  }
  net::BufferPool::Block aligned;
  if (reinterpret_cast<uintptr_t>(data) % operation.element_bytes != 0) {
    aligned = buffers_->Get(bytes);
    std::memcpy(aligned.data.get(), data, bytes);
    data = aligned.data.get();
  }
  const std::byte* operand = operation.operand + offset;
  const size_t count = bytes / operation.element_bytes;
  if (operation.incoming_first) {
    operation.reduce(operation.data + offset, data, operand, count);
  } else {
    operation.reduce(operation.data + offset, operand, data, count);
  }
  buffers_->Put(std::move(aligned));
}

void LinkState::Consumed(const MessageHeader& header) {
  consumed_ += limits_.Charge(header.piece_bytes);
  if (report_due() && !ReportConsumed()) keeper_->ReportLater(*this);
}

bool LinkState::OnMessage(const ParsedHeader& message, void* data, bool rendezvous) {
  const MessageHeader& header = message.header;
  if (header.consumed > acknowledged_ && header.consumed <= sent_) {
    peer_->outstanding -= header.consumed - acknowledged_;
    acknowledged_ = header.consumed;
  }
  if (abandoned_ || (header.flags & kCreditOnly) != 0 || !arrived_.IsNew(header.sequence)) return false;
  if (message.has_record) records_[next_record_++ % records_.size()] = message.record;
  const uint64_t charge = limits_.Charge(header.piece_bytes);
  const bool late = !arrivals_.empty() && header.sequence <= arrivals_.back().header.sequence;
  for (PostedRecv& receive : receives_) {
    if (!receive.Covers(header.sequence)) continue;
    const Delivery delivery = Deliver(receive, header, data, rendezvous);
    if (delivery == Delivery::kDone) return rendezvous;
    if (delivery == Delivery::kRefused) return false;
    break;  // no room now: it waits
  }
  if (waiting_charge_ + charge > limits_.window) {
    keeper_->FailPeer(*peer_, absl::InternalError("rank " + std::to_string(peer_->world_rank) +
                                                  " sent more than this rank's window allows; connection closed"));
    return false;
  }
  waiting_charge_ += charge;
  if (spare_arrivals_.empty()) spare_arrivals_.emplace_back();
  auto place = arrivals_.end();
  if (late) {
    place = std::find_if(arrivals_.begin(), arrivals_.end(),
                         [&header](const Arrival& other) { return other.header.sequence > header.sequence; });
  }
  arrivals_.splice(place, spare_arrivals_, spare_arrivals_.begin());
  Arrival& arrival = *std::prev(place);
  arrival.header = header;
  if (rendezvous) {
    arrival.descriptor = data;
  } else {
    arrival.copy = buffers_->Get(std::max<size_t>(header.piece_bytes, 1));
    if (header.piece_bytes > 0) std::memcpy(arrival.copy.data.get(), data, header.piece_bytes);
  }
  return rendezvous;
}

void LinkState::Drop(Arrival& arrival) {
  if (arrival.descriptor != nullptr) worker_->Discard(std::exchange(arrival.descriptor, nullptr));
  buffers_->Put(std::exchange(arrival.copy, {}));
}

}  // namespace cohort::comm::ucx
