#include "cohort/comm/transport/tcp/link_sender.h"

#include <algorithm>
#include <utility>

#include "cohort/comm/transport/tcp/link_receiver.h"

namespace cohort::comm::tcp {

Progress LinkSender::TrySend(SendOperation& operation) {
  auto* posted = static_cast<Posted*>(operation.state);
  if (posted == nullptr) {
    if (spare_.empty()) spare_.emplace_back();
    posted_.splice(posted_.end(), spare_, spare_.begin());
    posted = &posted_.back();
    *posted = Posted();
    posted->operation = &operation;
    posted->message = next_message_++;
    operation.state = posted;
    ++*pending_operations_;
    if (peer_->state == PeerState::kUnknown) peer_->keeper->WantConnection(*peer_);
  }
  // The grant that it waits for may be there.
  if (stalled_ && peer_->state == PeerState::kConnected) peer_->keeper->ReadFor(*peer_, false, nullptr);
  Pump();
  return Result(*posted);
}

Progress LinkSender::Result(Posted& posted) {
  SendOperation& operation = *posted.operation;
  if (posted.done) {  // though the peer may have ended since
    Forget(posted);
    return Progress::kDone;
  }
  const bool unwritable = peer_->state == PeerState::kConnected && !peer_->connection->write_error().ok();
  if (unwritable || peer_->state == PeerState::kFailed) {
    operation.error = peer_->state == PeerState::kFailed
                          ? peer_->status
                          : absl::UnavailableError("lost the connection to rank " + std::to_string(peer_->world_rank) +
                                                   ": " + std::string(peer_->connection->write_error().message()));
    Forget(posted);
    return Progress::kFailed;
  }
  return std::exchange(posted.moved, false) ? Progress::kMoved : Progress::kBlocked;
}

void LinkSender::Pump() {
  if (peer_->state != PeerState::kConnected) return;
  if (in_flight_ != nullptr && peer_->connection->Flush() && in_flight_ != nullptr) in_flight_->moved = true;
  if (!peer_->connection->write_error().ok()) return peer_->keeper->OnWriteError(*peer_);
  // Boundedly: a receiver that keeps pace would otherwise take all of a long message in one call.
  const uint64_t most = sent_ + kMostFrameBytes;
  for (Posted& posted : posted_) {
    while (!posted.done) {
      if (in_flight_ != nullptr || sent_ >= most || BeginFrame(posted) == Pumped::kBlocked) return;
    }
  }
}

LinkSender::Pumped LinkSender::BeginFrame(Posted& posted) {
  const SendOperation& operation = *posted.operation;
  const int64_t bytes = limits_.FrameBytes(operation.bytes - posted.framed, granted_ - sent_);
  SetStalled(bytes < 0);
  if (bytes < 0) {
    peer_->connection->Leave(this);
    return Pumped::kBlocked;
  }
  FrameHeader header;
  header.lane = static_cast<uint16_t>(key_.lane);
  header.epoch = key_.epoch;
  header.frame_bytes = static_cast<uint32_t>(bytes);
  header.group = key_.group;
  header.signature = operation.signature;
  header.message = posted.message;
  header.message_bytes = operation.bytes;
  header.offset = posted.framed;
  header.granted = receiver_->Granted();
  // The first message of an operation on this link carries the whole call, so that a mismatch can name both.
  const bool first = operation.call != nullptr && operation.signature != last_signature_;
  const Connection::Written written =
      peer_->connection->Write(header, first ? operation.call : nullptr, operation.data + posted.framed, this);
  if (written == Connection::Written::kBusy) return Pumped::kBlocked;
  if (written == Connection::Written::kFailed) {
    peer_->keeper->OnWriteError(*peer_);
    return Pumped::kBlocked;
  }
  receiver_->NoteReported(header.granted);
  if (peer_->may_add_rails && header.frame_bytes >= kStripedFrom) peer_->keeper->WantConnection(*peer_);
  if (first) last_signature_ = operation.signature;
  sent_ += FlowLimits::Charge(header.frame_bytes);
  posted.framed += header.frame_bytes;
  posted.begun = posted.moved = true;
  if (written == Connection::Written::kPartly) {
    in_flight_ = &posted;
  } else {
    posted.done = posted.framed == operation.bytes;
  }
  return Pumped::kOn;
}

void LinkSender::FrameSent() {
  Posted* posted = std::exchange(in_flight_, nullptr);
  if (posted == nullptr) return;
  posted->moved = true;
  posted->done = posted->framed == posted->operation->bytes;
}

void LinkSender::SetStalled(bool stalled) {
  if (std::exchange(stalled_, stalled) == stalled) return;
  peer_->stalled_sends += stalled ? 1 : static_cast<size_t>(-1);
}

void LinkSender::OnGrant(uint64_t granted) {
  granted_ = std::max(granted_, granted);
  SetStalled(false);
}

void LinkSender::Forget(Posted& posted) {
  if (in_flight_ == &posted) {
    if (peer_->connection != nullptr) peer_->connection->LetGo(this);
    in_flight_ = nullptr;
  }
  --*pending_operations_;
  posted.operation->state = nullptr;
  const auto found =
      std::find_if(posted_.begin(), posted_.end(), [&](const Posted& entry) { return &entry == &posted; });
  spare_.splice(spare_.begin(), posted_, found);
  if (posted_.empty()) SetStalled(false);
}

void LinkSender::Abandon() {
  if (peer_->connection != nullptr) peer_->connection->LetGo(this);
  in_flight_ = nullptr;
  while (!posted_.empty()) Forget(posted_.front());
}

}  // namespace cohort::comm::tcp
