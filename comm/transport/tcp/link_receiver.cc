#include "cohort/comm/transport/tcp/link_receiver.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace cohort::comm::tcp {
namespace {

using Choice = FrameSink::Choice;

// Data that are reduced pass through the processor's cache in pieces of this many bytes.
constexpr size_t kStageBytes = 128 << 10;
// Messages from here on are read straight into their place, with a system call of their own for the head.
constexpr size_t kLongMessage = 8 << 10;

}  // namespace

LinkReceiver::Posted& LinkReceiver::Post(RecvOperation& operation) {
  Posted& posted = messages_.Add(operation);
  credit_.Post(operation.bytes);
  peer_->AddPosted();
  return posted;
}

Progress LinkReceiver::TryRecv(RecvOperation& operation) {
  auto* posted = static_cast<Posted*>(operation.state);
  bool moved = false;
  if (posted == nullptr) {
    posted = &Post(operation);
    if (!early_.empty()) moved = TakeEarly();
    ReportIfDue();
  }
  if (!posted->done && peer_->state == PeerState::kConnected && IsFirst(*posted)) {
    moved |= peer_->keeper->ReadFor(*peer_, operation.bytes - posted->received > kLongMessage, &posted->done);
  }
  return Result(*posted, moved);
}

// Whether it is the next one to complete: only that one reads, for all.
bool LinkReceiver::IsFirst(const Posted& posted) {
  const auto first = std::find_if(messages_.begin(), messages_.end(), [](const Posted& entry) { return !entry.done; });
  return first != messages_.end() && &*first == &posted;
}

Progress LinkReceiver::Result(Posted& posted, bool moved) {
  RecvOperation& operation = *posted.operation;
  if (posted.done && !posted.failed) {
    Forget(posted);
    return Progress::kDone;
  }
  if (posted.failed || peer_->state == PeerState::kFailed) {
    if (operation.error.ok()) operation.error = peer_->status;
    Forget(posted);
    return Progress::kFailed;
  }
  return moved ? Progress::kMoved : Progress::kBlocked;
}

void LinkReceiver::Complete(Posted& posted) {
  credit_.Unpost(posted.operation->bytes - posted.received);
  posted.done = true;
  peer_->RemovePosted();
}

bool LinkReceiver::CheckCall(Posted& posted, const FrameHeader& header) {
  if (posted.failed) return false;
  if (header.signature == posted.operation->signature && header.message_bytes == posted.operation->bytes) return true;
  posted.failed = true;
  history_.Mismatch(peer_->world_rank, header.signature, header.message_bytes, posted.operation);
  Complete(posted);
  return false;
}

Choice LinkReceiver::OnFrame(const FrameHeader& header, const runtime::CallRecord* record, bool keep, bool again) {
  if (record != nullptr && !again) history_.Add(*record);
  if (header.message != next_message_ || header.offset != next_offset_) {
    return Refuse("sent a frame out of order");
  }
  Posted* posted = early_.empty() ? messages_.Find(header.message) : nullptr;
  if (posted == nullptr && !keep) return {Choice::kHold, nullptr};
  next_offset_ += header.frame_bytes;
  if (next_offset_ == header.message_bytes) {
    ++next_message_;
    next_offset_ = 0;
  }
  taken_ = header;
  filled_ = staged_ = 0;
  into_ = posted;
  if (posted == nullptr) return Keep(header);
  taking_ = !CheckCall(*posted, header)            ? Taking::kRefused
            : posted->operation->reduce != nullptr ? Taking::kReduce
                                                   : Taking::kDirect;
  if (taking_ != Taking::kDirect && header.frame_bytes > 0) stage_ = buffers_->Get(kStageBytes);
  return {Choice::kTake, this};
}

Choice LinkReceiver::Refuse(const char* why) {
  peer_->keeper->FailPeer(
      *peer_, absl::InternalError("rank " + std::to_string(peer_->world_rank) + " " + why + "; connection closed"));
  return {Choice::kStop, nullptr};
}

Choice LinkReceiver::Keep(const FrameHeader& header) {
  const uint64_t charge = FlowLimits::Charge(header.frame_bytes);
  if (early_.Add(early_.end(), header, charge, header.frame_bytes) == nullptr) {
    return Refuse("sent more than this rank's window allows");
  }
  taking_ = Taking::kKeep;
  return {Choice::kTake, this};
}

std::byte* LinkReceiver::Room(uint64_t left, size_t* bytes) {
  switch (taking_) {
    case Taking::kDirect:
      *bytes = static_cast<size_t>(left);
      return into_->operation->data + taken_.offset + filled_;
    case Taking::kKeep:
      *bytes = static_cast<size_t>(left);
      return early_.back().data.data.get() + early_.back().filled;
    case Taking::kReduce:
    case Taking::kRefused:
    case Taking::kNothing:
      break;
  }
  *bytes = static_cast<size_t>(std::min<uint64_t>(left, kStageBytes - staged_));
  return stage_.data.get() + staged_;
}

void LinkReceiver::Filled(size_t bytes) {
  if (taking_ == Taking::kDirect) {
    filled_ += bytes;
  } else if (taking_ == Taking::kKeep) {
    early_.back().filled += bytes;
  } else if (taking_ == Taking::kReduce) {
    // Whole elements; the rest of one stays in front.
    staged_ += bytes;
    RecvOperation& operation = *into_->operation;
    const size_t whole = staged_ / operation.element_bytes * operation.element_bytes;
    if (staged_ < kStageBytes && filled_ + staged_ < taken_.frame_bytes) return;  // more fits
    net::Deliver(operation, taken_.offset + filled_, stage_.data.get(), whole);
    filled_ += whole;
    staged_ -= whole;
    if (staged_ > 0) std::memmove(stage_.data.get(), stage_.data.get() + whole, staged_);
  }
}

void LinkReceiver::EndFrame() {
  buffers_->Put(std::exchange(stage_, {}));
  const Taking taking = std::exchange(taking_, Taking::kNothing);
  Posted* posted = std::exchange(into_, nullptr);
  if (taking == Taking::kKeep) {
    TakeEarly();  // its receive may have been posted meanwhile
  } else if (posted != nullptr && !posted->done) {
    Account(*posted, taken_);
  }
}

void LinkReceiver::Account(Posted& posted, const FrameHeader& header) {
  credit_.Consume(FlowLimits::Charge(header.frame_bytes));
  posted.received += header.frame_bytes;
  credit_.Unpost(header.frame_bytes);
  if (posted.received == posted.operation->bytes) Complete(posted);
  ReportIfDue();
}

// Hands frames that came early to the receives they belong to. Returns whether there were any.
bool LinkReceiver::TakeEarly() {
  bool moved = false;
  while (!early_.empty()) {
    const Early& early = early_.front();
    const FrameHeader& header = early.header;
    Posted* posted = messages_.Find(header.message);
    const bool whole = taking_ != Taking::kKeep || &early != &early_.back();
    if (posted == nullptr || !whole) break;
    if (CheckCall(*posted, header)) {
      net::Deliver(*posted->operation, header.offset, early.data.data.get(), header.frame_bytes);
      Account(*posted, header);
    }
    early_.Remove(early_.begin());
    moved = true;
  }
  return moved;
}

void LinkReceiver::ReportIfDue() {
  if (credit_.report_due() && !Report()) peer_->keeper->ReportLater(*this);
}

bool LinkReceiver::Report() {
  const bool due = credit_.report_due();
  if (peer_->state != PeerState::kConnected) return !due || peer_->state == PeerState::kFailed;
  if (!due) {
    peer_->connection->Leave(this);
    return true;
  }
  FrameHeader header;
  header.flags = kGrantOnly;
  header.lane = static_cast<uint16_t>(key_.lane);
  header.epoch = key_.epoch;
  header.group = key_.group;
  header.granted = credit_.granted();
  switch (peer_->connection->Write(header, nullptr, nullptr, this)) {
    case Connection::Written::kBusy:
      return false;
    case Connection::Written::kFailed:
      peer_->keeper->OnWriteError(*peer_);
      return true;
    case Connection::Written::kAll:
    case Connection::Written::kPartly:
      break;
  }
  credit_.Report(header.granted);
  return true;
}

void LinkReceiver::Forget(Posted& posted) {
  if (into_ == &posted) {
    // The rest of its frame is read to nowhere.
    if (peer_->connection != nullptr) peer_->connection->Forget(this);
    buffers_->Put(std::exchange(stage_, {}));
    taking_ = Taking::kNothing;
    into_ = nullptr;
  }
  if (!posted.done) Complete(posted);
  messages_.Remove(posted);
}

void LinkReceiver::Abandon() {
  if (peer_->connection != nullptr) {
    peer_->connection->Forget(this);
    peer_->connection->LetGo(this);
  }
  buffers_->Put(std::exchange(stage_, {}));
  taking_ = Taking::kNothing;
  early_.Clear();
  while (!messages_.empty()) Forget(messages_.front());
}

}  // namespace cohort::comm::tcp
