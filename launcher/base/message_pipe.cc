#include "cohort/launcher/base/message_pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

namespace cohort::launcher {
namespace {

constexpr size_t kMaxSkipped = 1u << 20;

}  // namespace

absl::StatusOr<bool> MessageReader::Next(google::protobuf::MessageLite* message) {
  if (!awaited_.empty()) {
    const size_t found = buffer_.find(awaited_);
    if (found == std::string::npos) {
      if (buffer_.size() <= kMaxSkipped) return false;
      return absl::InvalidArgumentError("other text than its messages, beginning with '" + buffer_.substr(0, 80) + "'");
    }
    consumed_ = found + awaited_.size();
    awaited_.clear();
  }
  uint64_t length = 0;
  size_t at = consumed_;
  for (int shift = 0;; shift += 7) {
    if (shift > 28) return absl::InvalidArgumentError("the message's length is not a length; the stream is broken");
    if (at == buffer_.size()) return false;
    const auto byte = static_cast<uint8_t>(buffer_[at++]);
    length |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
  }
  if (length > kMaxPipeMessage) {
    return absl::InvalidArgumentError("a message of " + std::to_string(length) + " bytes; the limit is " +
                                      std::to_string(kMaxPipeMessage));
  }
  if (buffer_.size() - at < length) return false;
  if (!message->ParseFromArray(buffer_.data() + at, static_cast<int>(length))) {
    return absl::InvalidArgumentError("bytes that are not a " + message->GetTypeName());
  }
  consumed_ = at + length;
  if (consumed_ == buffer_.size() || consumed_ > (64u << 10)) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  return true;
}

void AppendDelimited(const google::protobuf::MessageLite& message, std::string* out) {
  uint64_t length = message.ByteSizeLong();
  do {
    const auto low = static_cast<uint8_t>(length & 0x7f);
    length >>= 7;
    out->push_back(static_cast<char>(length != 0 ? low | 0x80 : low));
  } while (length != 0);
  message.AppendToString(out);
}

MessageWriter::MessageWriter(EventLoop* loop, runtime::FileDescriptor fd) : loop_(loop), fd_(std::move(fd)) {
  ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

MessageWriter::~MessageWriter() { Close(); }

bool MessageWriter::Write(const google::protobuf::MessageLite& message) {
  if (broken_ || !fd_.valid()) return false;
  AppendDelimited(message, &pending_);
  if (!armed_) WriteSome();
  return !broken_;
}

void MessageWriter::WriteSome() {
  const bool was_full = full();
  while (written_ < pending_.size()) {
    const ssize_t n = ::write(fd_.get(), pending_.data() + written_, pending_.size() - written_);
    if (n > 0) {
      written_ += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && errno == EAGAIN) {
      break;
    } else {
      broken_ = true;
      written_ = pending_.size();
    }
  }
  if (written_ == pending_.size() || written_ > (256u << 10)) {
    pending_.erase(0, written_);
    written_ = 0;
  }
  const bool want = !pending_.empty() && !broken_;
  if (want && !armed_) {
    loop_->Watch(fd_.get(), EPOLLOUT, [this](uint32_t) { WriteSome(); });
  } else if (!want && armed_) {
    loop_->Unwatch(fd_.get());
  }
  armed_ = want;
  if (on_drained_ && ((was_full && !full()) || empty())) on_drained_();
}

void MessageWriter::Close() {
  if (armed_) loop_->Unwatch(fd_.get());
  armed_ = false;
  fd_.Close();
}

void MessageWriter::Flush(std::chrono::milliseconds timeout) {
  const auto end = EventLoop::Clock::now() + timeout;
  while (fd_.valid() && !broken_ && !empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - EventLoop::Clock::now()).count();
    if (left <= 0) return;
    pollfd poll_fd{fd_.get(), POLLOUT, 0};
    if (::poll(&poll_fd, 1, static_cast<int>(left)) > 0) WriteSome();
  }
}

}  // namespace cohort::launcher
