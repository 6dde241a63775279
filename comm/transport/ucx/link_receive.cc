// The receiving half of LinkState.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "cohort/comm/transport/ucx/link_state.h"

namespace cohort::comm::ucx {

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
  Transfer* transfer = worker_->NewTransfer();
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
  BufferPool::Block aligned;
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

bool LinkState::IsNew(uint64_t sequence) {
  if (sequence == next_arrival_) {
    const int run = std::countr_one(arrived_ahead_);
    arrived_ahead_ = run >= 63 ? 0 : arrived_ahead_ >> (run + 1);
    next_arrival_ += static_cast<uint64_t>(run) + 1;
    return true;
  }
  const uint64_t ahead = sequence - next_arrival_ - 1;
  if (sequence < next_arrival_ || ahead >= 64 || (arrived_ahead_ >> ahead & 1) != 0) return false;
  arrived_ahead_ |= uint64_t{1} << ahead;
  return true;
}

bool LinkState::OnMessage(const ParsedHeader& message, void* data, bool rendezvous) {
  const MessageHeader& header = message.header;
  if (header.consumed > acknowledged_ && header.consumed <= sent_) {
    peer_->outstanding -= header.consumed - acknowledged_;
    acknowledged_ = header.consumed;
  }
  if (abandoned_ || (header.flags & kCreditOnly) != 0 || !IsNew(header.sequence)) return false;
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
