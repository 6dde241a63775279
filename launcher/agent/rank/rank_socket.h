// The agent's socket for its ranks: an abstract SOCK_SEQPACKET address with a random name, so that nothing lies in a
// file system and nobody can guess it. Moves packets; RankService gives them meaning.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

inline constexpr size_t kMaxRankPacket = 64u << 10;

class RankSocket {
 public:
  using PeerId = uint64_t;
  struct Callbacks {
    std::function<void(PeerId, const std::string& packet)> on_packet;
    std::function<void(PeerId)> on_closed;  // the peer has gone, or was dropped for a packet too large
  };

  RankSocket(EventLoop* loop, Callbacks callbacks);
  ~RankSocket();
  RankSocket(const RankSocket&) = delete;
  RankSocket& operator=(const RankSocket&) = delete;

  // Listens at `address`: '@' and the abstract name. At most `max_peers` connections at a time, few of them of other
  // users (who see the name in /proc/net/unix); others are closed.
  absl::Status Listen(const std::string& address, int max_peers);

  // Sends a packet, with a descriptor (not taken over) or -1. What does not fit now is kept, 4 MiB a peer; a peer that
  // lets more pile up is dropped.
  void Send(PeerId peer, const std::string& packet, int fd = -1);
  void Close(PeerId peer);
  // Delivers what the peer has sent already; with `last` what comes later is never read: its connection is dropped.
  void TakeRest(PeerId peer, bool last);

  // The process at the other end, as the kernel knows it.
  pid_t PidOf(PeerId peer) const;
  uid_t UserOf(PeerId peer) const;

 private:
  struct Unsent {
    std::string packet;
    runtime::FileDescriptor fd;
  };
  struct Peer {
    runtime::FileDescriptor fd;
    pid_t pid = 0;
    uid_t user = 0;
    std::deque<Unsent> unsent;
    size_t unsent_bytes = 0;
    EventLoop::Clock::time_point since{};
    bool spoke = false;
  };
  void Accept();
  bool MakeRoom();
  void OnReady(PeerId id, uint32_t events);
  bool ReadOne(PeerId id);  // false: nothing there now, or nobody
  bool SendNow(const Peer& peer, const std::string& packet, int fd, bool* gone);
  void SendUnsent(PeerId id);
  void Drop(PeerId id);

  EventLoop* loop_;
  Callbacks callbacks_;
  runtime::FileDescriptor listener_;
  int max_peers_ = 0;
  EventLoop::TimerId accept_again_ = 0;
  PeerId next_peer_ = 1;
  std::map<PeerId, Peer> peers_;
};

// "@cohort-" and 32 random hexadecimal digits.
std::string NewSocketAddress();

}  // namespace cohort::launcher
