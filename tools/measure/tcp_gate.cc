#include "tools/measure/tcp_gate.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::measure {
namespace {

using runtime::Deadline;
using runtime::ErrnoStatus;
using runtime::FileDescriptor;

constexpr std::chrono::minutes kPatience{2};
constexpr int kLooksBeforeIdle = 64;

struct Hello {
  GateToken token{};
  int32_t rank = 0;
};

absl::StatusOr<std::vector<sockaddr_storage>> Resolve(const std::string& ip, uint16_t port, socklen_t* length) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(ip.empty() ? nullptr : ip.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return absl::InvalidArgumentError("\"" + ip + "\" is no address: " + gai_strerror(error));
  std::vector<sockaddr_storage> addresses(1);
  std::memcpy(addresses.data(), found->ai_addr, found->ai_addrlen);
  *length = found->ai_addrlen;
  freeaddrinfo(found);
  return addresses;
}

void SendAtOnce(int fd) {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Until `fd` is ready for `events`.
absl::Status WaitFor(int fd, int16_t events, const TcpGate::Patience& patience, const std::string& late) {
  for (;;) {
    pollfd ready{.fd = fd, .events = events, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(patience.deadline.left());
    const int count = poll(&ready, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000)));
    if (count > 0) return absl::OkStatus();
    if (count < 0 && errno != EINTR) return ErrnoStatus(errno, "cannot wait for the benchmark's ranks");
    if (patience.deadline.passed()) return absl::DeadlineExceededError(late);
    if (patience.idle) COHORT_RETURN_IF_ERROR(patience.idle());
  }
}

}  // namespace

absl::StatusOr<TcpGate::Listener> TcpGate::Listen(const std::string& ip) {
  socklen_t length = 0;
  COHORT_ASSIGN_OR_RETURN(std::vector<sockaddr_storage> address, Resolve(ip, 0, &length));
  Listener listener;
  listener.fd = FileDescriptor(socket(address[0].ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.fd.valid() || bind(listener.fd.get(), reinterpret_cast<sockaddr*>(address.data()), length) != 0 ||
      listen(listener.fd.get(), SOMAXCONN) != 0 ||
      getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(address.data()), &length) != 0) {
    return ErrnoStatus(errno, "cannot listen for the benchmark's gate");
  }
  listener.port = ntohs(address[0].ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(address.data())->sin6_port
                                                         : reinterpret_cast<sockaddr_in*>(address.data())->sin_port);
  return listener;
}

absl::StatusOr<std::unique_ptr<TcpGate>> TcpGate::Accept(Listener listener, int ranks, const GateToken& token,
                                                         const Patience& patience) {
  std::unique_ptr<TcpGate> gate(new TcpGate);
  gate->root_ = true;
  gate->peers_.resize(static_cast<size_t>(ranks - 1));
  for (int missing = ranks - 1; missing > 0;) {
    COHORT_RETURN_IF_ERROR(
        WaitFor(listener.fd.get(), POLLIN, patience, std::to_string(missing) + " ranks did not reach rank 0 over TCP"));
    FileDescriptor peer(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer.valid()) continue;
    const timeval limit{.tv_sec = 2, .tv_usec = 0};
    (void)setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    Hello hello;
    if (recv(peer.get(), &hello, sizeof hello, MSG_WAITALL) != static_cast<ssize_t>(sizeof hello)) continue;
    if (hello.token != token || hello.rank < 1 || hello.rank >= ranks) continue;
    FileDescriptor& place = gate->peers_[static_cast<size_t>(hello.rank - 1)];
    if (place.valid()) continue;
    SendAtOnce(peer.get());
    place = std::move(peer);
    --missing;
  }
  return gate;
}

absl::StatusOr<std::unique_ptr<TcpGate>> TcpGate::Connect(const std::string& ip, uint16_t port, int rank,
                                                          const GateToken& token, const Patience& patience) {
  socklen_t length = 0;
  COHORT_ASSIGN_OR_RETURN(std::vector<sockaddr_storage> address, Resolve(ip, port, &length));
  FileDescriptor peer(socket(address[0].ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const std::string unreachable = "cannot reach rank 0 at " + ip + " port " + std::to_string(port) +
                                  " for the benchmark's gate; does a firewall forbid it?";
  const Hello hello{token, rank};
  int error = 0;
  socklen_t error_size = sizeof error;
  if (!peer.valid() || (connect(peer.get(), reinterpret_cast<sockaddr*>(address.data()), length) != 0 &&
                        errno != EINPROGRESS && errno != EINTR)) {
    return ErrnoStatus(errno, unreachable);
  }
  COHORT_RETURN_IF_ERROR(WaitFor(peer.get(), POLLOUT, patience, unreachable));
  if (getsockopt(peer.get(), SOL_SOCKET, SO_ERROR, &error, &error_size) != 0 || error != 0) {
    return ErrnoStatus(error != 0 ? error : errno, unreachable);
  }
  if (send(peer.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello)) {
    return ErrnoStatus(errno, unreachable);
  }
  SendAtOnce(peer.get());
  std::unique_ptr<TcpGate> gate(new TcpGate);
  gate->peers_.push_back(std::move(peer));
  return gate;
}

absl::Status TcpGate::Read(int fd, void* data, size_t bytes) {
  const Deadline deadline = Deadline::After(kPatience);
  char* at = static_cast<char*>(data);
  for (int looks = 1; bytes > 0; ++looks) {
    const ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
    if (got > 0) {
      at += got;
      bytes -= static_cast<size_t>(got);
      continue;
    }
    if (got == 0) return absl::UnavailableError("a rank has left the benchmark's gate");
    if (errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, "the benchmark's gate");
    sched_yield();
    if (looks % kLooksBeforeIdle != 0) continue;
    COHORT_RETURN_IF_ERROR(Idle());
    if (deadline.passed()) return absl::DeadlineExceededError("the other ranks did not come to the benchmark's gate");
  }
  return absl::OkStatus();
}

absl::Status TcpGate::Write(int fd, const void* data, size_t bytes) {
  const Deadline deadline = Deadline::After(kPatience);
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<size_t>(sent);
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, "the benchmark's gate");
    if (deadline.passed()) return absl::DeadlineExceededError("a rank does not read from the benchmark's gate");
    pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
    (void)poll(&ready, 1, 1000);
  }
  return absl::OkStatus();
}

absl::Status TcpGate::Wait() {
  char byte = 0;
  if (!root_) {
    COHORT_RETURN_IF_ERROR(Write(peers_[0].get(), &byte, 1));
    return Read(peers_[0].get(), &byte, 1);
  }
  for (const FileDescriptor& peer : peers_) COHORT_RETURN_IF_ERROR(Read(peer.get(), &byte, 1));
  for (const FileDescriptor& peer : peers_) COHORT_RETURN_IF_ERROR(Write(peer.get(), &byte, 1));
  return absl::OkStatus();
}

absl::Status TcpGate::Reduce(std::span<uint64_t> numbers, How how) {
  if (!root_) {
    COHORT_RETURN_IF_ERROR(Write(peers_[0].get(), numbers.data(), numbers.size_bytes()));
    return Read(peers_[0].get(), numbers.data(), numbers.size_bytes());
  }
  received_.resize(numbers.size());
  for (const FileDescriptor& peer : peers_) {
    COHORT_RETURN_IF_ERROR(Read(peer.get(), received_.data(), numbers.size_bytes()));
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = how == How::kMax ? std::max(numbers[i], received_[i]) : numbers[i] + received_[i];
    }
  }
  for (const FileDescriptor& peer : peers_) {
    COHORT_RETURN_IF_ERROR(Write(peer.get(), numbers.data(), numbers.size_bytes()));
  }
  return absl::OkStatus();
}

absl::Status TcpGate::Max(std::span<uint64_t> numbers) { return Reduce(numbers, How::kMax); }
absl::Status TcpGate::Sum(std::span<uint64_t> numbers) { return Reduce(numbers, How::kSum); }

}  // namespace cohort::measure
