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
    if (short_ != Short::kNone) {
      TakeUpShort(*posted);
    } else {
      posted->message = next_message_++;
    }
    operation.state = posted;
    ++*pending_operations_;
    if (peer_->state == PeerState::kUnknown) peer_->keeper->WantConnection(*peer_);
  }
  // The grant that it waits for may be there.
  if (stalled_ && peer_->state == PeerState::kConnected) peer_->keeper->ReadFor(*peer_, false, nullptr);
  Pump();
  return Result(*posted);
}

bool LinkSender::Send(const std::byte* data, size_t bytes, const runtime::CallRecord& call) {
  if (peer_->state != PeerState::kConnected || !posted_.empty() || short_ != Short::kNone) return false;
  if (limits_.FrameBytes(bytes, granted_ - sent_) != static_cast<int64_t>(bytes)) return false;
  FrameHeader header;
  header.frame_bytes = static_cast<uint32_t>(bytes);
  header.signature = call.wire_signature;
  header.message = next_message_;
  header.message_bytes = bytes;
  const Connection::Written written = WriteFrame(header, &call, data);
  if (written == Connection::Written::kBusy || written == Connection::Written::kFailed) return false;
  ++next_message_;
  // An operation goes on with it, so that this process knows of something to do.
  if (written == Connection::Written::kPartly) short_ = Short::kPartly;
  return written == Connection::Written::kAll;
}

// The operation for a message that Send has begun.
void LinkSender::TakeUpShort(Posted& posted) {
  posted.message = next_message_ - 1;
  posted.framed = posted.operation->bytes;
  posted.begun = posted.moved = true;
  posted.done = std::exchange(short_, Short::kNone) == Short::kSent;
  if (!posted.done) in_flight_ = &posted;
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
  header.frame_bytes = static_cast<uint32_t>(bytes);
  header.signature = operation.signature;
  header.message = posted.message;
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
  header.granted = receiver_->Granted();
  // The first message of an operation on this link carries the whole call, so that a mismatch can name both.
  const bool first = call != nullptr && header.signature != last_signature_;
  const Connection::Written written = peer_->connection->Write(header, first ? call : nullptr, data, this);
  if (written == Connection::Written::kFailed) peer_->keeper->OnWriteError(*peer_);
  if (written == Connection::Written::kFailed || written == Connection::Written::kBusy) return written;
  receiver_->NoteReported(header.granted);
  if (first) last_signature_ = header.signature;
  sent_ += FlowLimits::Charge(header.frame_bytes);
  return written;
}

void LinkSender::FrameSent() {
  if (short_ == Short::kPartly) short_ = Short::kSent;
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
