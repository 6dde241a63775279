// The entrance of this process for others: the listening socket, and the connections on which nobody is proved yet.
// They are bounded in number, bytes and time, so strangers cost a few descriptors for a while.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/comm/transport/tcp/handshake_socket.h"
#include "cohort/comm/transport/tcp/socket/watch.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::comm::tcp {

class Entrance {
 public:
  // Both outlive it. Accepted sockets are watched by tokens from `first_token` on.
  Entrance(const HandshakeTerms* terms, Watch* watch, uint64_t listener_token, uint64_t first_token)
      : terms_(terms), watch_(watch), listener_token_(listener_token), next_token_(first_token) {}

  absl::Status Open(const std::string& ip, const std::string& port_range, int buffer_bytes);
  const std::vector<std::string>& addresses() const { return addresses_; }

  // There may be connections to accept, or the socket of `token` has something to read.
  void OnListener() { may_accept_ = true; }
  void OnSocket(uint64_t token);
  // Accepts, boundedly, and ends what has taken too long. `proved` takes those that are proved, in order. Returns
  // whether anything moved.
  bool Poll(const std::function<void(std::unique_ptr<HandshakeSocket>)>& proved);
  // Whether Poll would do anything that needs no event.
  bool due() const { return may_accept_ && std::chrono::steady_clock::now() >= accept_from_; }
  // Whether others queue in the kernel until a place is free, which no event tells.
  bool full() const { return full_; }
  size_t waiting() const { return sockets_.size(); }

 private:
  using Sockets = std::list<std::unique_ptr<HandshakeSocket>>;

  Sockets::iterator OldestStranger();
  bool AcceptSome();
  bool MakeRoom();
  bool NoteHello(const HandshakeSocket& socket);
  void EndLate();
  void EndOthersOf(const HandshakeSocket& socket);

  const HandshakeTerms* const terms_;
  Watch* const watch_;
  const uint64_t listener_token_;
  uint64_t next_token_;
  runtime::FileDescriptor listener_;
  std::vector<std::string> addresses_;
  bool may_accept_ = false;
  bool full_ = false;
  std::chrono::steady_clock::time_point accept_from_;  // not before: descriptors or places had run out
  std::chrono::steady_clock::time_point look_for_late_at_;
  Sockets sockets_;              // oldest first
  std::vector<uint64_t> ready_;  // tokens of those that have had an event
  // Beginnings of the nonces of right hellos, and their order.
  std::unordered_set<uint64_t> greeted_;
  std::deque<uint64_t> greeted_order_;
};

}  // namespace cohort::comm::tcp
