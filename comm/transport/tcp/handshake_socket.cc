#include "cohort/comm/transport/tcp/handshake_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/runtime/base/errno_status.h"

namespace cohort::comm::tcp {

HandshakeSocket::State HandshakeSocket::End(absl::Status status) {
  status_ = std::move(status);
  socket_.Close();
  return state_ = State::kEnded;
}

HandshakeSocket::State HandshakeSocket::FinishConnecting() {
  const int error = ConnectError(socket_.get());
  if (error == EINPROGRESS) return state_;
  if (error != 0) {
    refused_ = error == ECONNREFUSED;
    return End(absl::UnavailableError(runtime::ErrnoText(error)));
  }
  state_ = State::kTalking;
  if (!Send(handshake_.Hello())) return End(absl::UnavailableError("the connection ended at once"));
  return state_;
}

// A new socket has room for the few frames of a handshake.
bool HandshakeSocket::Send(const HandshakeFrame& frame) {
  return send(socket_.get(), &frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof frame);
}

bool HandshakeSocket::SendReply() { return !reply_.has_value() || Send(*reply_); }

// True when the handshake went on.
bool HandshakeSocket::TakeFrame() {
  HandshakeFrame frame;
  std::memcpy(&frame, incoming_.data(), sizeof frame);
  received_ = 0;
  absl::StatusOr<std::optional<HandshakeFrame>> reply = handshake_.Take(frame);
  if (!reply.ok()) {
    End(reply.status());
    return false;
  }
  if (handshake_.state() == Handshake::State::kProved) {
    reply_ = *reply;
    state_ = State::kProved;
  } else if (reply->has_value() && !Send(**reply)) {
    End(absl::UnavailableError("the connection ended"));
  }
  return state_ == State::kTalking;
}

HandshakeSocket::State HandshakeSocket::Advance() {
  if (state_ == State::kConnecting) FinishConnecting();
  while (state_ == State::kTalking) {
    const ssize_t bytes = recv(socket_.get(), incoming_.data() + received_, incoming_.size() - received_, MSG_DONTWAIT);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (bytes <= 0) {
      return End(
          absl::UnavailableError(bytes == 0 ? "the other side closed the connection" : runtime::ErrnoText(errno)));
    }
    received_ += static_cast<size_t>(bytes);
    if (received_ == incoming_.size() && !TakeFrame()) break;
  }
  return state_;
}

}  // namespace cohort::comm::tcp
