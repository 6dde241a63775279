// Takes in whoever connects to the rendezvous' port, so that strangers can't use up its host's descriptors: at most so
// many connections that have not proven to be an agent's have a place, the oldest of which goes when another comes, and
// each has a few seconds. gRPC gets a connection when it has begun to speak TLS; nothing else costs it anything.
//
// gRPC 1.51 has no bound of its own, and never accepts again once it has found no descriptor (CVE-2023-4785). Here the
// oldest silent one goes then, and else whoever comes waits in the kernel's queue until there are some again.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "cohort/launcher/base/net/listener.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {

// One side of a connection, whatever its form: of a socket address, and of what gRPC calls it ("ipv4:127.0.0.1:4711",
// "ipv6:%5B::1%5D:4711"). Empty for what is neither. An address of IPv4 behind one of IPv6 is that of IPv4.
std::string PeerKey(const sockaddr_storage& address);
std::string PeerKey(const std::string& grpc_peer);
// Its address alone, without the scope of a link-local one, which means nothing elsewhere: "127.0.0.1", "::1". Empty
// for what is no such name.
std::string PeerHost(const std::string& grpc_peer);

class ConnectionGuard {
 public:
  struct Options {
    size_t max_unproven = 64;  // that are silent so far, and again as many that speak
    std::chrono::milliseconds limit{
        5000};  // for the first byte; whoever gets the connection sets one for the handshake
  };
  // Owns the connection from then on. From the guard's thread.
  using HandOver = std::function<void(runtime::FileDescriptor connection)>;

  // kResourceExhausted: no descriptors. Nobody is taken in before Start.
  static absl::StatusOr<std::unique_ptr<ConnectionGuard>> Create(Listener listener, const Options& options,
                                                                 HandOver hand_over);
  ~ConnectionGuard() { Stop(); }
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;

  void Start();
  // The peer, as gRPC calls it, has shown who it is: its connection is not counted any more, nor ended. Any thread.
  void Proven(const std::string& grpc_peer) COHORT_EXCLUDES(mutex_);
  // Neither listens nor hands over any more.
  void Stop() COHORT_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage { kSilent, kSpeaks };
  struct Connection {
    uint64_t id = 0;
    std::string peer;
    runtime::FileDescriptor socket;  // of one that speaks: a duplicate, with which it can be ended, and its end seen
    Clock::time_point end;
  };
  using Queue = std::list<Connection>;  // the oldest first
  struct Place {
    Stage stage;
    Queue::iterator at;
  };

  ConnectionGuard(Listener listener, const Options& options, HandOver hand_over);
  absl::Status Open();
  void Run();
  int MillisecondsToNext() COHORT_EXCLUDES(mutex_);
  void AcceptAll(int listener);
  bool FindRoom() COHORT_EXCLUDES(mutex_);
  void Listen(bool on);
  void Admit(runtime::FileDescriptor socket, const sockaddr_storage& peer) COHORT_EXCLUDES(mutex_);
  int SilentSocket(uint64_t id) COHORT_EXCLUDES(mutex_);
  void OnReady(uint64_t id) COHORT_EXCLUDES(mutex_);
  void EndLate() COHORT_EXCLUDES(mutex_);
  Queue& QueueOf(Stage stage) COHORT_REQUIRES(mutex_) { return stage == Stage::kSilent ? silent_ : speaking_; }
  void Add(Stage stage, Connection connection) COHORT_REQUIRES(mutex_);
  Connection Take(uint64_t id) COHORT_REQUIRES(mutex_);
  bool EndOldest(Stage stage) COHORT_REQUIRES(mutex_);

  const Options options_;
  const HandOver hand_over_;
  Listener listener_;                                          // of the thread alone, as is the next
  Clock::time_point paused_until_ = Clock::time_point::max();  // that: it is not
  runtime::FileDescriptor epoll_;
  runtime::FileDescriptor wake_;
  std::thread thread_;

  runtime::Mutex mutex_;
  bool stopping_ COHORT_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ COHORT_GUARDED_BY(mutex_) = 1;
  Queue silent_ COHORT_GUARDED_BY(mutex_);
  Queue speaking_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Place> places_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<std::string, uint64_t> speakers_ COHORT_GUARDED_BY(mutex_);  // by peer
};

}  // namespace cohort::launcher
