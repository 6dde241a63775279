#include "cohort/comm/transport/tcp/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/runtime/base/errno_status.h"

namespace cohort::comm::tcp {
namespace {

constexpr size_t kBytesPerRead = 1 << 20;
// Bytes that nobody wants end here.
constexpr size_t kScratchBytes = 64 << 10;

absl::Status Lost(int error) { return absl::UnavailableError(runtime::ErrnoText(error)); }
bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

// ---- writing ----

bool Connection::MayBegin(FrameOwner* owner) {
  if (!flushing() && (turns_.empty() || turns_.front() == owner)) {
    if (!turns_.empty()) turns_.pop_front();
    return true;
  }
  if (std::find(turns_.begin(), turns_.end(), owner) == turns_.end()) turns_.push_back(owner);
  return false;
}

Connection::Written Connection::Write(FrameHeader& header, const runtime::CallRecord* record, const std::byte* data,
                                      FrameOwner* owner) {
  if (!write_error_.ok()) return Written::kFailed;
  if (flushing()) Flush();
  if (!MayBegin(owner)) return Written::kBusy;
  header.flags = static_cast<uint16_t>(header.flags | (record != nullptr ? kHasRecord : 0));
  if (rails_ != nullptr && header.frame_bytes >= kStripedFrom) {
    header.flags = static_cast<uint16_t>(header.flags | rails_->BeginWriting(header.frame_bytes));
  }
  header.tag = TagOf(send_key_, header, frames_sent_++);
  partial_.head_begin = 0;
  partial_.head_end = HeadBytes(header);
  std::memcpy(partial_.head.data(), &header, sizeof header);
  if (record != nullptr) std::memcpy(partial_.head.data() + sizeof header, record, sizeof *record);
  partial_.data = data;
  partial_.data_left = header.frame_bytes;
  if (header.frame_bytes > 0 && header.frame_bytes <= kMostShortBytes) {
    std::memcpy(partial_.head.data() + partial_.head_end, data, header.frame_bytes);
    partial_.head_end += std::exchange(partial_.data_left, 0);
  }
  partial_.owner = nullptr;  // set below where the frame does not go out at once
  WritePartial();
  if (!write_error_.ok()) return Written::kFailed;
  if (!flushing()) return Written::kAll;
  partial_.owner = owner;
  return Written::kPartly;
}

void Connection::EndWriting(const absl::Status& error) {
  write_error_ = error;
  partial_.head_begin = partial_.head_end;
  partial_.data_left = 0;
  if (rails_ != nullptr) rails_->EndWriting();
  if (tls_ == nullptr) return;
  tls_->DropUnsent();
  if (!tls_->status().ok()) write_error_ = tls_->status();
}

ssize_t Connection::SendPartial(size_t head) {
  if (tls_ != nullptr) {
    return tls_->Send(partial_.head.data() + partial_.head_begin, head, partial_.data, partial_.data_left);
  }
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  std::byte* const head_left = partial_.head.data() + partial_.head_begin;
  if (partial_.data_left == 0) return send(socket_.get(), head_left, head, kFlags);
  if (head == 0) return send(socket_.get(), partial_.data, partial_.data_left, kFlags);
  iovec parts[2] = {{head_left, head}, {const_cast<std::byte*>(partial_.data), partial_.data_left}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return sendmsg(socket_.get(), &message, kFlags);
}

// Returns whether anything moved.
bool Connection::WritePartial() {
  if (rails_ != nullptr && rails_->writing()) return WriteStripes();
  const size_t head = partial_.head_end - partial_.head_begin;
  const bool unsent = tls_ != nullptr && tls_->unsent();
  const ssize_t bytes = SendPartial(head);
  if (bytes < 0) {
    // Under memory pressure the kernel takes nothing for a while.
    if (WouldBlock(errno) || errno == EINTR || errno == ENOBUFS || errno == ENOMEM) return false;
    EndWriting(Lost(errno));
    return true;
  }
  const size_t of_head = std::min(static_cast<size_t>(bytes), head);
  partial_.head_begin += of_head;
  partial_.data += static_cast<size_t>(bytes) - of_head;
  partial_.data_left -= static_cast<size_t>(bytes) - of_head;
  return bytes > 0 || (unsent && !tls_->unsent());
}

bool Connection::WriteStripes() {
  const size_t head = partial_.head_end - partial_.head_begin;
  RailSet::Moved moved = rails_->Write(socket_.get(), partial_.head.data() + partial_.head_begin, head, partial_.data);
  partial_.head_begin += moved.head;
  partial_.data_left -= moved.data;
  if (!moved.error.ok()) EndWriting(moved.error);
  if (!flushing()) rails_->EndWriting();
  return moved.head + moved.data > 0 || !moved.error.ok();
}

bool Connection::Flush() {
  if (!flushing() || !WritePartial()) return false;
  if (flushing()) return true;
  FrameOwner* owner = std::exchange(partial_.owner, nullptr);
  partial_.copy.reset();
  if (owner != nullptr && write_error_.ok()) owner->FrameSent();
  return true;
}

void Connection::LetGo(FrameOwner* owner) {
  Leave(owner);
  if (!flushing() || partial_.owner != owner) return;
  partial_.owner = nullptr;
  if (partial_.data_left == 0) return;
  // Some of every stripe of a striped frame may be left.
  const bool striped = rails_ != nullptr && rails_->writing();
  const size_t bytes = striped ? rails_->writing_bytes() : partial_.data_left;
  partial_.copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::memcpy(partial_.copy.get(), partial_.data, bytes);
  partial_.data = partial_.copy.get();
}

bool Connection::unacknowledged() const {
  if (!write_error_.ok() || HasEnded(socket_.get())) return false;
  return flushing() || HasUnacknowledged(socket_.get()) || (rails_ != nullptr && rails_->unacknowledged());
}

// ---- reading ----

ssize_t Connection::ReceiveTls(std::byte* to, size_t bytes) {
  bool more = false;
  const ssize_t got = tls_->Receive(to, bytes, &more);
  if (got > 0) {
    readable_ = ending_ || more;
  } else if (got < 0 && !tls_->status().ok()) {
    read_error_ = tls_->status();
  }
  return got;
}

size_t Connection::Receive(std::byte* to, size_t bytes) {
  while (true) {
    const ssize_t got = tls_ != nullptr ? ReceiveTls(to, bytes) : recv(socket_.get(), to, bytes, MSG_DONTWAIT);
    if (got > 0) {
      if (tls_ != nullptr) return static_cast<size_t>(got);
      // Fewer bytes than fit: the socket is empty, and an event comes with the next ones.
      readable_ = ending_ || static_cast<size_t>(got) == bytes;
      return static_cast<size_t>(got);
    }
    if (got < 0 && errno == EINTR) continue;
    readable_ = false;
    if (got == 0) {
      read_error_ = absl::UnavailableError("the other side closed the connection");
    } else if (!WouldBlock(errno) && read_error_.ok()) {
      read_error_ = Lost(errno);
    }
    return 0;
  }
}

void Connection::AddRail(int rail, runtime::FileDescriptor socket, std::string name) {
  if (rails_ == nullptr) rails_ = std::make_unique<RailSet>();
  rails_->Add(rail, std::move(socket), std::move(name));
}

bool Connection::readable() const {
  if (!striped_ || reading_ != Reading::kData) return readable_;
  const int rail = rails_->Next(data_left_);
  return rail == 0 ? readable_ : rails_->readable(rail);
}

void Connection::FinishFrame() {
  reading_ = Reading::kHead;
  if (FrameTaker* taker = std::exchange(taker_, nullptr); taker != nullptr) taker->EndFrame();
}

Connection::Step Connection::Begin(const FrameHeader& header, bool keep) {
  const bool again = reading_ == Reading::kHeld;
  runtime::CallRecord record;
  const bool has_record = (header.flags & kHasRecord) != 0;
  if (has_record) record = RecordAt(buffer_.data() + sizeof header);
  const FrameSink::Choice choice = sink_->OnFrame(header, has_record ? &record : nullptr, keep, again);
  if (choice.kind == FrameSink::Choice::kStop) return Step::kStop;
  if (choice.kind == FrameSink::Choice::kHold) {
    reading_ = Reading::kHeld;
    return Step::kStop;
  }
  buffer_.Take(HeadBytes(header));
  taker_ = choice.kind == FrameSink::Choice::kTake ? choice.taker : nullptr;
  data_left_ = header.frame_bytes;
  const auto rails = static_cast<uint16_t>(header.flags & kRailBits);
  striped_ = rails != 0;
  if (striped_) rails_->BeginReading(data_left_, rails);
  reading_ = Reading::kData;
  if (data_left_ == 0) FinishFrame();
  return Step::kOn;
}

Connection::Step Connection::ReadHead(bool keep, bool long_expected, size_t* budget) {
  FrameHeader header;
  size_t needed = sizeof header;
  if (buffer_.size() >= sizeof header) {
    std::memcpy(&header, buffer_.data(), sizeof header);
    if (reading_ == Reading::kHeld) return Begin(header, keep);
    const absl::Status right = CheckTagged(receive_key_, header, frames_received_);
    if (!right.ok()) {
      read_error_ = absl::UnavailableError("the connection carried what it must not: " + std::string(right.message()));
      return Step::kStop;
    }
    const bool striped = (header.flags & kRailBits) != 0;
    if (striped && (rails_ == nullptr || !rails_->HasAll(header.flags))) return Step::kStop;  // a welcome is on its way
    needed = HeadBytes(header);
    if (buffer_.size() >= needed) {
      ++frames_received_;
      return Begin(header, keep);
    }
  }
  const std::span<std::byte> room = buffer_.Room(std::max(long_expected ? kMostHeadBytes : buffer_.capacity(), needed));
  const size_t got = Receive(room.data(), room.size());
  buffer_.Add(got);
  *budget -= std::min(*budget, got);
  return got > 0 ? Step::kOn : Step::kStop;
}

Connection::Step Connection::ReadData(size_t* budget) {
  static thread_local std::array<std::byte, kScratchBytes> scratch;
  size_t room = std::min<uint64_t>(data_left_, scratch.size());
  std::byte* to = taker_ != nullptr ? taker_->Room(data_left_, &room) : scratch.data();
  const int rail = striped_ ? rails_->Next(data_left_) : 0;
  if (striped_) room = std::min<uint64_t>(room, rails_->Run(data_left_));
  size_t got = rail == 0 ? std::min(room, buffer_.size()) : 0;
  if (got > 0) {
    std::memcpy(to, buffer_.data(), got);
    buffer_.Take(got);
  } else {
    room = std::min(room, *budget);
    got = rail == 0 ? Receive(to, room) : rails_->Receive(rail, to, room, &read_error_);
    if (got == 0) return Step::kStop;
    *budget -= std::min(*budget, got);
  }
  data_left_ -= got;
  if (taker_ != nullptr) taker_->Filled(got);
  if (data_left_ == 0) FinishFrame();
  return Step::kOn;
}

bool Connection::Read(bool keep, bool long_expected, const bool* enough) {
  size_t budget = kBytesPerRead;
  const bool greeting = tls_ != nullptr && tls_->greeting();
  bool moved = false;
  while (read_error_.ok() && (enough == nullptr || !*enough)) {
    const uint64_t seen = frames_received_;
    const Step step = reading_ == Reading::kData ? ReadData(&budget) : ReadHead(keep, long_expected, &budget);
    moved = moved || step == Step::kOn || frames_received_ != seen;
    if (step == Step::kStop || budget == 0) break;
  }
  // Frames may wait for the end of TLS's handshake.
  if (greeting && !tls_->greeting()) {
    Flush();
    moved = true;
  }
  return moved || !read_error_.ok();
}

void Connection::Forget(const FrameTaker* taker) {
  if (taker_ == taker) taker_ = nullptr;
}

}  // namespace cohort::comm::tcp
