#include "cohort/launcher/agent/rank/rank_socket.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace cohort::launcher {
namespace {

constexpr size_t kMaxUnsentBytes = 4u << 20;
// They are told why they are refused, and must not take the ranks' places.
constexpr int kMaxOtherUsers = 4;
constexpr std::chrono::milliseconds kAcceptAgain{100};
// A rank says hello at once. Where all places are taken, a client that has been silent for longer loses its own.
constexpr std::chrono::milliseconds kMaxSilence{1000};
constexpr int kMostLastPackets = 1 << 14;

}  // namespace

std::string NewSocketAddress() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) std::abort();  // never fails for 16 bytes once booted
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string address = "@cohort-";
  for (const unsigned char byte : bytes) {
    address += kDigits[byte >> 4];
    address += kDigits[byte & 15];
  }
  return address;
}

RankSocket::RankSocket(EventLoop* loop, Callbacks callbacks) : loop_(loop), callbacks_(std::move(callbacks)) {}

RankSocket::~RankSocket() {
  loop_->Cancel(accept_again_);
  if (listener_.valid()) loop_->Unwatch(listener_.get());
  for (auto& [id, peer] : peers_) loop_->Unwatch(peer.fd.get());
}

absl::Status RankSocket::Listen(const std::string& address, int max_peers) {
  max_peers_ = max_peers;
  listener_ = runtime::FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (!listener_.valid() || address.size() < 2 || address.size() > sizeof name.sun_path || address[0] != '@') {
    return absl::InternalError("can't make the ranks' socket: " + std::string(std::strerror(errno)));
  }
  std::memcpy(name.sun_path + 1, address.data() + 1, address.size() - 1);  // the leading NUL makes it abstract
  const socklen_t length = offsetof(sockaddr_un, sun_path) + address.size();
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
      ::listen(listener_.get(), SOMAXCONN) != 0) {
    return absl::InternalError("can't listen for ranks: " + std::string(std::strerror(errno)));
  }
  loop_->Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  return absl::OkStatus();
}

void RankSocket::Accept() {
  for (;;) {
    runtime::FileDescriptor fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid() && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      // The connection stays in the queue, and the listener ready: look again later, not in a circle.
      loop_->SetEvents(listener_.get(), 0);
      loop_->Cancel(accept_again_);
      accept_again_ = loop_->After(kAcceptAgain, [this] { loop_->SetEvents(listener_.get(), EPOLLIN); });
    }
    if (!fd.valid()) return;
    if (peers_.size() >= static_cast<size_t>(max_peers_) && !MakeRoom()) continue;
    ucred credentials{};
    socklen_t length = sizeof credentials;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) continue;
    const auto other_user = [](const auto& entry) { return entry.second.user != ::getuid(); };
    if (credentials.uid != ::getuid() && std::count_if(peers_.begin(), peers_.end(), other_user) >= kMaxOtherUsers) {
      continue;
    }
    const int buffer = 512 << 10;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    const PeerId id = next_peer_++;
    const int raw = fd.get();
    peers_[id] = Peer{std::move(fd), credentials.pid, credentials.uid, {}, 0, EventLoop::Clock::now()};
    loop_->Watch(raw, EPOLLIN, [this, id](uint32_t events) { OnReady(id, events); });
  }
}

bool RankSocket::MakeRoom() {
  const auto limit = EventLoop::Clock::now() - kMaxSilence;
  for (const auto& [id, peer] : peers_) {
    if (peer.spoke || peer.since > limit) continue;
    Drop(id);
    return true;
  }
  return false;
}

void RankSocket::OnReady(PeerId id, uint32_t events) {
  if ((events & EPOLLOUT) != 0) SendUnsent(id);
  // A bounded number of packets, so that one rank can't starve the others.
  for (int i = 0; i < 64 && ReadOne(id); ++i) continue;
}

bool RankSocket::ReadOne(PeerId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return false;
  std::string packet(kMaxRankPacket, '\0');
  const ssize_t n = ::recv(found->second.fd.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_TRUNC);
  if (n < 0 && errno == EINTR) return true;
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0 || static_cast<size_t>(n) > kMaxRankPacket) {
    Drop(id);
    return false;
  }
  packet.resize(static_cast<size_t>(n));
  found->second.spoke = true;
  callbacks_.on_packet(id, packet);
  return true;
}

void RankSocket::TakeRest(PeerId id, bool last) {
  // The socket's buffer holds far fewer packets; a rank that still sends can't keep this going.
  for (int i = 0; i < kMostLastPackets && ReadOne(id); ++i) continue;
  if (last) Drop(id);
}

bool RankSocket::SendNow(const Peer& peer, const std::string& packet, int fd, bool* gone) {
  iovec data{const_cast<char*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  for (;;) {
    if (::sendmsg(peer.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
    if (errno == EINTR) continue;
    *gone = errno != EAGAIN && errno != ENOBUFS;
    return false;
  }
}

void RankSocket::Send(PeerId id, const std::string& packet, int fd) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  bool gone = false;
  if (peer.unsent.empty() && SendNow(peer, packet, fd, &gone)) return;
  peer.unsent_bytes += packet.size();
  if (gone || peer.unsent_bytes > kMaxUnsentBytes) {
    // Not from within the caller's call: the loop will see the hang-up.
    ::shutdown(peer.fd.get(), SHUT_RDWR);
    return;
  }
  peer.unsent.push_back({packet, runtime::FileDescriptor(fd >= 0 ? ::fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1)});
  loop_->SetEvents(peer.fd.get(), EPOLLIN | EPOLLOUT);
}

void RankSocket::SendUnsent(PeerId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  while (!peer.unsent.empty()) {
    const Unsent& next = peer.unsent.front();
    bool gone = false;
    if (!SendNow(peer, next.packet, next.fd.get(), &gone)) {
      if (gone) Drop(id);
      return;
    }
    peer.unsent_bytes -= next.packet.size();
    peer.unsent.pop_front();
  }
  loop_->SetEvents(peer.fd.get(), EPOLLIN);
}

void RankSocket::Close(PeerId id) {
  const auto found = peers_.find(id);
  if (found != peers_.end()) ::shutdown(found->second.fd.get(), SHUT_RDWR);
}

void RankSocket::Drop(PeerId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  loop_->Unwatch(found->second.fd.get());
  peers_.erase(found);
  callbacks_.on_closed(id);
}

pid_t RankSocket::PidOf(PeerId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? 0 : found->second.pid;
}

uid_t RankSocket::UserOf(PeerId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? static_cast<uid_t>(-1) : found->second.user;
}

}  // namespace cohort::launcher
