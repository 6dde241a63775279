#include "cohort/comm/transport/tcp/link_receiver.h"

#include <algorithm>
#include <array>
#include <cstddef>
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

// Puts a short message's data in place.
void TakeShort(const ShortReceive& receive, const std::byte* data) {
  if (receive.reduce == nullptr) {
    if (receive.bytes > 0) std::memcpy(receive.data, data, receive.bytes);
    return;
  }
  // Kernels want elements at their natural alignment, which a place in a stream does not have.
  alignas(std::max_align_t) std::array<std::byte, kMostShortBytes> aligned;
  std::memcpy(aligned.data(), data, receive.bytes);
  if (receive.incoming_first) {
    receive.reduce(receive.data, aligned.data(), receive.operand, receive.count);
  } else {
    receive.reduce(receive.data, receive.operand, aligned.data(), receive.count);
  }
}

}  // namespace

LinkReceiver::Posted& LinkReceiver::Post(RecvOperation& operation) {
  if (spare_posted_.empty()) spare_posted_.emplace_back();
  posted_.splice(posted_.end(), spare_posted_, spare_posted_.begin());
  Posted& posted = posted_.back();
  posted = Posted();
  posted.operation = &operation;
  posted.message = next_posted_++;
  operation.state = &posted;
  posted_left_ += operation.bytes;
  ++*pending_operations_;
  peer_->AddPosted();
  return posted;
}

Progress LinkReceiver::TryRecv(RecvOperation& operation) {
  auto* posted = static_cast<Posted*>(operation.state);
  bool moved = false;
  if (posted == nullptr) {
    posted = &Post(operation);
    if (!arrivals_.empty()) moved = TakeArrivals();
    ReportIfDue();
  }
  if (!posted->done && peer_->state == PeerState::kConnected && IsFirst(*posted)) {
    moved |= peer_->keeper->ReadFor(*peer_, operation.bytes - posted->received > kLongMessage, &posted->done);
  }
  return Result(*posted, moved);
}

// Whether it is the next one to complete: only that one reads, for all.
bool LinkReceiver::IsFirst(const Posted& posted) const {
  const auto first = std::find_if(posted_.begin(), posted_.end(), [](const Posted& entry) { return !entry.done; });
  return first != posted_.end() && &*first == &posted;
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

// Whether the frame is all of the message that is received next.
bool LinkReceiver::IsWhole(const FrameHeader& header, const ShortReceive& receive) const {
  return header.message == next_posted_ && header.offset == 0 && header.frame_bytes == receive.bytes &&
         header.message_bytes == receive.bytes && header.signature == receive.signature;
}

bool LinkReceiver::Receive(const ShortReceive& receive, uint64_t* granted) {
  if (!posted_.empty()) return false;
  if (!arrivals_.empty()) return ReceiveArrival(receive);
  FrameHeader header;
  const std::byte* data = nullptr;
  if (!peer_->keeper->PeekShort(*peer_, &header, &data)) return false;
  const bool of_link = header.group == key_.group && header.epoch == key_.epoch && header.lane == key_.lane;
  if (!of_link || (header.flags & kGrantOnly) != 0 || !IsWhole(header, receive) || next_message_ != header.message ||
      next_offset_ != 0) {
    peer_->keeper->ReadFor(*peer_, /*long_expected=*/false, nullptr);  // the message may be behind it
    return false;
  }
  if ((header.flags & kHasRecord) != 0) {
    records_[next_record_++ % records_.size()] = RecordAt(data - sizeof(runtime::CallRecord));
  }
  TakeShort(receive, data);
  *granted = header.granted;
  peer_->keeper->TakeShort(*peer_, header);
  ++next_message_;
  EndShort(header);
  return true;
}

bool LinkReceiver::ReceiveArrival(const ShortReceive& receive) {
  Arrival& arrival = arrivals_.front();
  if (!IsWhole(arrival.header, receive) || arrival.filled != arrival.header.frame_bytes) return false;
  TakeShort(receive, arrival.data.data.get());
  kept_ -= FlowLimits::Charge(arrival.header.frame_bytes);
  buffers_->Put(std::exchange(arrival.data, {}));
  spare_arrivals_.splice(spare_arrivals_.begin(), arrivals_, arrivals_.begin());
  EndShort(spare_arrivals_.front().header);
  return true;
}

void LinkReceiver::EndShort(const FrameHeader& header) {
  ++next_posted_;
  consumed_ += FlowLimits::Charge(header.frame_bytes);
  ReportIfDue();
}

LinkReceiver::Posted* LinkReceiver::PostedFor(uint64_t message) {
  for (Posted& posted : posted_) {
    if (posted.message == message) return &posted;
  }
  return nullptr;
}

void LinkReceiver::Complete(Posted& posted) {
  posted_left_ -= posted.operation->bytes - posted.received;
  posted.done = true;
  peer_->RemovePosted();
}

bool LinkReceiver::CheckCall(Posted& posted, const FrameHeader& header) {
  RecvOperation& operation = *posted.operation;
  if (posted.failed) return false;
  if (header.signature == operation.signature && header.message_bytes == operation.bytes) return true;
  posted.failed = true;
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
  Complete(posted);
  return false;
}

Choice LinkReceiver::OnFrame(const FrameHeader& header, const runtime::CallRecord* record, bool keep, bool again) {
  if (record != nullptr && !again) records_[next_record_++ % records_.size()] = *record;
  if (header.message != next_message_ || header.offset != next_offset_) {
    return Refuse("sent a frame out of order");
  }
  Posted* posted = arrivals_.empty() ? PostedFor(header.message) : nullptr;
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
  if (kept_ + charge > limits_.window + FlowLimits::kOverhead) {
    return Refuse("sent more than this rank's window allows");
  }
  kept_ += charge;
  if (spare_arrivals_.empty()) spare_arrivals_.emplace_back();
  arrivals_.splice(arrivals_.end(), spare_arrivals_, spare_arrivals_.begin());
  Arrival& arrival = arrivals_.back();
  arrival.header = header;
  arrival.data = buffers_->Get(std::max<size_t>(header.frame_bytes, 1));
  arrival.filled = 0;
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
      return arrivals_.back().data.data.get() + arrivals_.back().filled;
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
    arrivals_.back().filled += bytes;
  } else if (taking_ == Taking::kReduce) {
    // Whole elements; the rest of one stays in front.
    staged_ += bytes;
    RecvOperation& operation = *into_->operation;
    const size_t whole = staged_ / operation.element_bytes * operation.element_bytes;
    if (staged_ < kStageBytes && filled_ + staged_ < taken_.frame_bytes) return;  // more fits
    Reduce(operation, taken_.offset + filled_, stage_.data.get(), whole);
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
    TakeArrivals();  // its receive may have been posted meanwhile
  } else if (posted != nullptr && !posted->done) {
    Account(*posted, taken_);
  }
}

void LinkReceiver::Account(Posted& posted, const FrameHeader& header) {
  consumed_ += FlowLimits::Charge(header.frame_bytes);
  posted.received += header.frame_bytes;
  posted_left_ -= header.frame_bytes;
  if (posted.received == posted.operation->bytes) Complete(posted);
  ReportIfDue();
}

void LinkReceiver::Reduce(RecvOperation& operation, uint64_t offset, const std::byte* data, size_t bytes) {
  const size_t count = bytes / operation.element_bytes;
  if (count == 0) return;
  const std::byte* operand = operation.operand + offset;
  if (operation.incoming_first) {
    operation.reduce(operation.data + offset, data, operand, count);
  } else {
    operation.reduce(operation.data + offset, operand, data, count);
  }
}

void LinkReceiver::Deliver(Posted& posted, const Arrival& arrival) {
  if (CheckCall(posted, arrival.header)) {
    RecvOperation& operation = *posted.operation;
    const std::byte* data = arrival.data.data.get();
    const uint64_t offset = arrival.header.offset;
    if (operation.reduce != nullptr) {
      Reduce(operation, offset, data, arrival.header.frame_bytes);
    } else if (arrival.header.frame_bytes > 0) {
      std::memcpy(operation.data + offset, data, arrival.header.frame_bytes);
    }
    Account(posted, arrival.header);
  }
}

// Hands frames that came early to the receives they belong to. Returns whether there were any.
bool LinkReceiver::TakeArrivals() {
  bool moved = false;
  while (!arrivals_.empty()) {
    Arrival& arrival = arrivals_.front();
    Posted* posted = PostedFor(arrival.header.message);
    const bool whole = taking_ != Taking::kKeep || &arrival != &arrivals_.back();
    if (posted == nullptr || !whole) break;
    kept_ -= FlowLimits::Charge(arrival.header.frame_bytes);
    Deliver(*posted, arrival);
    buffers_->Put(std::exchange(arrival.data, {}));
    spare_arrivals_.splice(spare_arrivals_.begin(), arrivals_, arrivals_.begin());
    moved = true;
  }
  return moved;
}

void LinkReceiver::ReportIfDue() {
  if (ReportDue() && !ReportGrant()) peer_->keeper->ReportLater(*this);
}

bool LinkReceiver::ReportGrant() {
  const bool due = ReportDue();
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
  header.granted = Granted();
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
  NoteReported(header.granted);
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
  --*pending_operations_;
  posted.operation->state = nullptr;
  const auto found =
      std::find_if(posted_.begin(), posted_.end(), [&](const Posted& entry) { return &entry == &posted; });
  spare_posted_.splice(spare_posted_.begin(), posted_, found);
}

void LinkReceiver::Abandon() {
  if (peer_->connection != nullptr) {
    peer_->connection->Forget(this);
    peer_->connection->LetGo(this);
  }
  buffers_->Put(std::exchange(stage_, {}));
  taking_ = Taking::kNothing;
  for (Arrival& arrival : arrivals_) buffers_->Put(std::exchange(arrival.data, {}));
  arrivals_.clear();
  while (!posted_.empty()) Forget(posted_.front());
}

}  // namespace cohort::comm::tcp
