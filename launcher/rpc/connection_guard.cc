#include "cohort/launcher/rpc/connection_guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/listener.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr uint64_t kWake = 0;                      // no connection's
constexpr uint64_t kListener = uint64_t{1} << 63;  // with the number of its socket
constexpr int kAcceptsAtOnce = 256;                // then those that are here are looked at
constexpr std::chrono::milliseconds kPause{20};    // until descriptors are looked for again
constexpr unsigned char kTlsHandshake = 0x16;      // the first byte of a TLS client

std::string KeyOf(const in6_addr& host, int port) {
  std::string key(reinterpret_cast<const char*>(&host), sizeof host);
  return key + ":" + std::to_string(port);
}

in6_addr Mapped(const in_addr& four) {
  in6_addr six{};
  six.s6_addr[10] = six.s6_addr[11] = 0xff;
  std::memcpy(&six.s6_addr[12], &four, sizeof four);
  return six;
}

bool Register(int epoll, int fd, uint32_t events, uint64_t id, int operation = EPOLL_CTL_ADD) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return ::epoll_ctl(epoll, operation, fd, &event) == 0;
}

}  // namespace

std::string PeerKey(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return KeyOf(Mapped(four.sin_addr), ntohs(four.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  return KeyOf(six.sin6_addr, ntohs(six.sin6_port));
}

std::string PeerHost(const std::string& grpc_peer) {
  const size_t scheme = grpc_peer.find(':');
  const size_t colon = grpc_peer.rfind(':');
  if (scheme == std::string::npos || colon <= scheme) return "";
  std::string host = grpc_peer.substr(scheme + 1, colon - scheme - 1);
  for (const std::string bracket : {"%5B", "%5D", "[", "]"}) {
    if (const size_t at = host.find(bracket); at != std::string::npos) host.erase(at, bracket.size());
  }
  return host.substr(0, host.find('%'));
}

std::string PeerKey(const std::string& grpc_peer) {
  const std::string host = PeerHost(grpc_peer);
  const int port = PortOf(grpc_peer);
  in_addr four{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return KeyOf(Mapped(four), port);
  in6_addr six{};
  return ::inet_pton(AF_INET6, host.c_str(), &six) == 1 ? KeyOf(six, port) : "";
}

ConnectionGuard::ConnectionGuard(Listener listener, const Options& options, HandOver hand_over)
    : options_(options), hand_over_(std::move(hand_over)), listener_(std::move(listener)) {}

absl::StatusOr<std::unique_ptr<ConnectionGuard>> ConnectionGuard::Create(Listener listener, const Options& options,
                                                                         HandOver hand_over) {
  std::unique_ptr<ConnectionGuard> guard(new ConnectionGuard(std::move(listener), options, std::move(hand_over)));
  COHORT_RETURN_IF_ERROR(guard->Open());
  return guard;
}

void ConnectionGuard::Start() {
  thread_ = std::thread([this] { Run(); });
}

absl::Status ConnectionGuard::Open() {
  epoll_ = runtime::FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = runtime::FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  bool all = epoll_.valid() && wake_.valid() && Register(epoll_.get(), wake_.get(), EPOLLIN, kWake);
  for (size_t i = 0; i < listener_.sockets.size() && all; ++i) {
    all = Register(epoll_.get(), listener_.sockets[i].get(), EPOLLIN, kListener | i);
  }
  if (all) return absl::OkStatus();
  return WithRemedy(Remedy::kDescriptorLimit,
                    absl::ResourceExhaustedError(std::string("can't watch the rendezvous' port: ") +
                                                 std::strerror(errno) + "; raise ulimit -n"));
}

void ConnectionGuard::Stop() {
  {
    const runtime::MutexLock lock(mutex_);
    stopping_ = true;
  }
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
  listener_.sockets.clear();
  const runtime::MutexLock lock(mutex_);
  places_.clear();
  speakers_.clear();
  silent_.clear();
  speaking_.clear();
}

void ConnectionGuard::Proven(const std::string& grpc_peer) {
  const std::string key = PeerKey(grpc_peer);
  const runtime::MutexLock lock(mutex_);
  const auto found = speakers_.find(key);
  if (found != speakers_.end()) Take(found->second);
}

void ConnectionGuard::Run() {
  epoll_event events[64];
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events, 64, MillisecondsToNext());
    {
      const runtime::MutexLock lock(mutex_);
      if (stopping_) return;
    }
    for (int i = 0; i < count; ++i) {  // those that are here come before those that would push them out
      const uint64_t id = events[i].data.u64;
      if (id != kWake && (id & kListener) == 0) OnReady(id);
    }
    EndLate();
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if ((id & kListener) != 0) AcceptAll(listener_.sockets[id & ~kListener].get());
    }
    if (Clock::now() >= paused_until_) Listen(true);
  }
}

int ConnectionGuard::MillisecondsToNext() {
  Clock::time_point next = paused_until_;
  {
    const runtime::MutexLock lock(mutex_);
    for (const Queue* queue : {&silent_, &speaking_}) {
      if (!queue->empty()) next = std::min(next, queue->front().end);
    }
  }
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void ConnectionGuard::AcceptAll(int listener) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    const int fd = ::accept4(listener, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      Admit(runtime::FileDescriptor(fd), peer);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (!HasWaiting(listener)) return;
      if (!FindRoom()) return Listen(false);
    } else if (errno == EAGAIN || errno == EINVAL || errno == EBADF) {
      return;
    }
    // Anything else is the end of the one connection that was next.
  }
}

bool ConnectionGuard::FindRoom() {
  const runtime::MutexLock lock(mutex_);
  return EndOldest(Stage::kSilent);
}

void ConnectionGuard::Listen(bool on) {
  paused_until_ = on ? Clock::time_point::max() : Clock::now() + kPause;
  for (size_t i = 0; i < listener_.sockets.size(); ++i) {
    Register(epoll_.get(), listener_.sockets[i].get(), on ? EPOLLIN : 0u, kListener | i, EPOLL_CTL_MOD);
  }
}

void ConnectionGuard::Admit(runtime::FileDescriptor socket, const sockaddr_storage& peer) {
  const runtime::MutexLock lock(mutex_);
  if (silent_.size() >= options_.max_unproven) EndOldest(Stage::kSilent);
  Add(Stage::kSilent, {.id = 0, .peer = PeerKey(peer), .socket = std::move(socket), .end = {}});
}

int ConnectionGuard::SilentSocket(uint64_t id) {
  const runtime::MutexLock lock(mutex_);
  const auto found = places_.find(id);
  return found == places_.end() || found->second.stage != Stage::kSilent ? -1 : found->second.at->socket.get();
}

// A silent one has said something, or one that spoke has ended.
void ConnectionGuard::OnReady(uint64_t id) {
  unsigned char first = 0;
  const int silent = SilentSocket(id);  // only this thread closes it
  if (silent >= 0) {
    const ssize_t n = ::recv(silent, &first, 1, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) first = 0;
  }
  runtime::FileDescriptor handed;
  {
    const runtime::MutexLock lock(mutex_);
    if (!places_.contains(id)) return;  // ended, or proven, meanwhile
    Connection connection = Take(id);
    if (first != kTlsHandshake) return;
    handed = std::move(connection.socket);
    connection.socket = runtime::FileDescriptor(::fcntl(handed.get(), F_DUPFD_CLOEXEC, 3));
    if (!connection.socket.valid()) return;
    if (speaking_.size() >= options_.max_unproven) EndOldest(Stage::kSpeaks);
    Add(Stage::kSpeaks, std::move(connection));
  }
  hand_over_(std::move(handed));
}

// Ends connections whose time is over. A handed-over connection's owner ends it by itself in that time.
void ConnectionGuard::EndLate() {
  const Clock::time_point now = Clock::now();
  const runtime::MutexLock lock(mutex_);
  for (Queue* queue : {&silent_, &speaking_}) {
    while (!queue->empty() && queue->front().end <= now) Take(queue->front().id);
  }
}

void ConnectionGuard::Add(Stage stage, Connection connection) {
  connection.id = next_id_++;
  connection.end = Clock::now() + options_.limit;
  const uint32_t events = stage == Stage::kSilent ? EPOLLIN : EPOLLRDHUP;
  if (!Register(epoll_.get(), connection.socket.get(), events, connection.id)) return;
  if (stage == Stage::kSpeaks) speakers_[connection.peer] = connection.id;
  Queue& queue = QueueOf(stage);
  const uint64_t id = connection.id;
  places_[id] = {stage, queue.insert(queue.end(), std::move(connection))};
}

ConnectionGuard::Connection ConnectionGuard::Take(uint64_t id) {
  const auto found = places_.find(id);
  const auto [stage, at] = found->second;
  Connection connection = std::move(*at);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);  // a duplicate's close would not do that
  const auto speaker = speakers_.find(connection.peer);
  if (speaker != speakers_.end() && speaker->second == id) speakers_.erase(speaker);
  QueueOf(stage).erase(at);
  places_.erase(found);
  return connection;
}

bool ConnectionGuard::EndOldest(Stage stage) {
  const Queue& queue = QueueOf(stage);
  if (queue.empty()) return false;
  const Connection oldest = Take(queue.front().id);
  ::shutdown(oldest.socket.get(), SHUT_RDWR);  // another holder of it closes it then
  return true;
}

}  // namespace cohort::launcher
