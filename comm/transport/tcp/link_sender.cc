#include "cohort/comm/transport/tcp/link_sender.h"

#include <utility>

#include "cohort/comm/transport/tcp/link_receiver.h"

namespace cohort::comm::tcp {

Progress LinkSender::TrySend(SendOperation& operation) {
  auto* posted = static_cast<Posted*>(operation.state);
  if (posted == nullptr) {
    posted = &messages_.Add(operation);
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
  const uint64_t most = credit_.sent() + kMostFrameBytes;
  for (Posted& posted : messages_) {
    while (!posted.done) {
      if (in_flight_ != nullptr || credit_.sent() >= most || BeginFrame(posted) == Pumped::kBlocked) return;
    }
  }
}

LinkSender::Pumped LinkSender::BeginFrame(Posted& posted) {
  const SendOperation& operation = *posted.operation;
  const int64_t bytes = limits_.FrameBytes(operation.bytes - posted.framed, credit_.allowed());
  SetStalled(bytes < 0);
  if (bytes < 0) {
    peer_->connection->Leave(this);
    return Pumped::kBlocked;
  }
  FrameHeader header;
  header.frame_bytes = static_cast<uint32_t>(bytes);
  header.signature = operation.signature;
  header.message = posted.first;
  header.message_bytes = operation.bytes;
  header.offset = posted.framed;
  const Connection::Written written = WriteFrame(header, operation.call, operation.data + posted.framed);
  if (written == Connection::Written::kBusy || written == Connection::Written::kFailed) return Pumped::kBlocked;
  if (peer_->may_add_rails && header.frame_bytes >= kStripedFrom) peer_->keeper->WantConnection(*peer_);
  posted.framed += header.frame_bytes;
  posted.begun = posted.moved = true;
  if (written == Connection::Written::kPartly) {
    in_flight_ = &posted;
  } else {
    posted.done = posted.framed == operation.bytes;
  }
  return Pumped::kOn;
}

// Fills what is the link's in the header, and writes the frame.
Connection::Written LinkSender::WriteFrame(FrameHeader& header, const runtime::CallRecord* call,
                                           const std::byte* data) {
  header.lane = static_cast<uint16_t>(key_.lane);
  header.epoch = key_.epoch;
  header.group = key_.group;
  header.granted = receiver_->credit().granted();
  // The first message of an operation on this link carries the whole call, so that a mismatch can name both.
  const bool first = call != nullptr && header.signature != last_signature_;
  const Connection::Written written = peer_->connection->Write(header, first ? call : nullptr, data, this);
  if (written == Connection::Written::kFailed) peer_->keeper->OnWriteError(*peer_);
  if (written == Connection::Written::kFailed || written == Connection::Written::kBusy) return written;
  receiver_->credit().Report(header.granted);
  if (first) last_signature_ = header.signature;
  credit_.Send(FlowLimits::Charge(header.frame_bytes));
  return written;
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
  credit_.Grant(granted);
  SetStalled(false);
}

void LinkSender::Forget(Posted& posted) {
  if (in_flight_ == &posted) {
    if (peer_->connection != nullptr) peer_->connection->LetGo(this);
    in_flight_ = nullptr;
  }
  messages_.Remove(posted);
  if (messages_.empty()) SetStalled(false);
}

void LinkSender::Abandon() {
  if (peer_->connection != nullptr) peer_->connection->LetGo(this);
  in_flight_ = nullptr;
  while (!messages_.empty()) Forget(messages_.front());
}

}  // namespace cohort::comm::tcp
