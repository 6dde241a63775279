#include "cohort/comm/transport/ucx/link_state.h"

#include <algorithm>
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

bool LinkState::Posted::InFlight() const {
  return std::any_of(in_flight.begin(), in_flight.end(),
                     [](Transfer* t) { return t != nullptr && t->copy.data == nullptr; });
}
bool LinkState::Posted::HasRoom() const {
  return std::any_of(in_flight.begin(), in_flight.end(), [](Transfer* t) { return t == nullptr; });
}
bool LinkState::Posted::AddTransfer(Transfer* transfer) {
  const auto room = std::find(in_flight.begin(), in_flight.end(), nullptr);
  if (room == in_flight.end()) return false;
  *room = transfer;
  return true;
}
void LinkState::Posted::DropTransfer(const Transfer* transfer) {
  std::replace(in_flight.begin(), in_flight.end(), const_cast<Transfer*>(transfer), static_cast<Transfer*>(nullptr));
}

LinkState::LinkState(const LinkKey& key, int self, Peer* peer, Worker* worker, BufferPool* buffers, PeerKeeper* keeper,
                     size_t* pending_operations)
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

  Transfer* transfer = worker_->NewTransfer();
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
  Transfer* transfer = worker_->NewTransfer();
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

}  // namespace cohort::comm::ucx
