// Connects to other processes: tries their addresses, speaks the handshake, and tries again where the other side has
// closed the connection before it was chosen.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/comm/transport/tcp/handshake_socket.h"
#include "cohort/comm/transport/tcp/socket/watch.h"

namespace cohort::comm::tcp {

class Dialer {
 public:
  // Both outlive it. Sockets are watched by tokens from `first_token` on.
  Dialer(const HandshakeTerms* terms, Watch* watch, uint64_t first_token)
      : terms_(terms), watch_(watch), next_token_(first_token) {}
  void set_buffer_bytes(int bytes) { buffer_bytes_ = bytes; }
  // For connections that are no more than useful: they leave from the interface of `ip`, and are given up soon.
  void set_optional(const std::string& ip) { optional_ip_ = ip; }

  // Begins to connect to `rank`, once. `addresses` is not empty.
  void Start(int rank, std::vector<std::string> addresses);
  // No longer wanted: another connection serves, or the rank is lost.
  void Stop(int rank);
  void OnSocket(uint64_t token);
  bool active() const { return !calls_.empty(); }
  // Whether this side has confirmed a connection to `rank` and awaits the welcome.
  bool AwaitsWelcome(int rank) const;

  // Goes on with all. `proved` takes a connection on which both sides are proved, and says whether it is the one to
  // use; if not, it is tried again. `failed`: the rank can't be reached. Both may call Stop. Returns whether anything
  // moved.
  bool Poll(const std::function<bool(int rank, HandshakeSocket& socket)>& proved,
            const std::function<void(int rank, const absl::Status& status)>& failed);

 private:
  using Clock = std::chrono::steady_clock;
  struct Call {
    int rank = -1;
    std::vector<std::string> addresses;
    size_t next = 0;     // address
    size_t refused = 0;  // of the addresses in this round
    std::unique_ptr<HandshakeSocket> socket;
    bool event = false;
    Clock::time_point again_at;  // not before
    Clock::duration pause = std::chrono::milliseconds(5);
    Clock::time_point give_up_at;
    bool stopped = false;
  };

  absl::Status Begin(Call& call);
  // Notes the end of an attempt; a status when there is to be no other.
  absl::Status Ended(Call& call, absl::Status why, bool refused);
  // One step; a status when the rank can't be reached.
  absl::Status Advance(Call& call, const std::function<bool(int, HandshakeSocket&)>& proved, bool* moved);

  const HandshakeTerms* const terms_;
  Watch* const watch_;
  uint64_t next_token_;
  int buffer_bytes_ = 0;
  std::string optional_ip_;
  std::list<Call> calls_;
};

}  // namespace cohort::comm::tcp
