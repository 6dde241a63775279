// Accepts all connections to the rendezvous' port, so that strangers cannot use up its host's descriptors. A bounded
// number of connections that have not proven to be an agent's have a place. The oldest goes when another comes, and
// each has a few seconds. gRPC gets a connection when it has begun to speak TLS. Other connections cost it nothing.
//
// gRPC 1.51 has no bound of its own, and never accepts again once it has found no descriptor (CVE-2023-4785). Here the
// oldest silent connection goes then. Otherwise new ones wait in the kernel's queue until there are descriptors again.
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

// Returns one key for a side of a connection, from its socket address or from gRPC's name for it
// ("ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711"). Empty for anything else. An IPv4 address inside an IPv6 one counts as
// IPv4.
std::string PeerKey(const sockaddr_storage& address);
std::string PeerKey(const std::string& grpc_peer);
// Returns the address alone: "127.0.0.1", "::1". The scope of a link-local one is left out, because it means nothing
// elsewhere. Empty for any other name.
std::string PeerHost(const std::string& grpc_peer);

class ConnectionGuard {
 public:
  struct Options {
    size_t max_unproven = 64;  // that are silent so far, and again as many that speak
    std::chrono::milliseconds limit{
        5000};  // for the first byte; the receiver of the connection sets one for the handshake
  };
  // Called on the guard's thread. It owns the connection from then on.
  using HandOver = std::function<void(runtime::FileDescriptor connection)>;

  // Connections are accepted only after Start. kResourceExhausted: there are no descriptors.
  static absl::StatusOr<std::unique_ptr<ConnectionGuard>> Create(Listener listener, const Options& options,
                                                                 HandOver hand_over);
  ~ConnectionGuard() { Stop(); }
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;

  void Start();
  // The peer, by gRPC's name, has shown its identity: its connection is neither counted nor ended any more. Any thread
  // may call it.
  void Proven(const std::string& grpc_peer) COHORT_EXCLUDES(mutex_);
  // Stops listening and handing over.
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
