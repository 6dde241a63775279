// A socket on which a handshake goes on: connecting, then frames of 64 bytes. It keeps nothing else of the other side,
// and reads not one byte beyond the handshake.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::comm::tcp {

class HandshakeSocket {
 public:
  enum class State : uint8_t { kConnecting, kTalking, kProved, kEnded };

  // `token` is the socket's number among the watched ones. One that connects begins in kConnecting.
  HandshakeSocket(uint64_t token, runtime::FileDescriptor socket, Handshake handshake, State state)
      : token_(token), socket_(std::move(socket)), handshake_(std::move(handshake)), state_(state) {}

  // Does what can be done now. kProved: SendReply and then Release, or destroy it. kEnded: see status().
  State Advance();
  // Sends what the other side awaits once this connection has been chosen. False: it can't, and the connection is
  // worth nothing.
  bool SendReply();
  // The socket and all that has not been read from it.
  runtime::FileDescriptor Release() { return std::move(socket_); }

  uint64_t token() const { return token_; }
  int descriptor() const { return socket_.get(); }
  const Handshake& handshake() const { return handshake_; }
  State state() const { return state_; }
  // Why it ended, and whether nobody listens there.
  const absl::Status& status() const { return status_; }
  bool refused() const { return refused_; }
  std::chrono::steady_clock::time_point begun() const { return begun_; }

 private:
  State End(absl::Status status);
  State FinishConnecting();
  bool Send(const HandshakeFrame& frame);
  bool TakeFrame();

  const uint64_t token_;
  runtime::FileDescriptor socket_;
  Handshake handshake_;
  State state_;
  bool refused_ = false;
  std::array<std::byte, sizeof(HandshakeFrame)> incoming_ = {};
  size_t received_ = 0;
  std::optional<HandshakeFrame> reply_;  // in kProved
  absl::Status status_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

}  // namespace cohort::comm::tcp
