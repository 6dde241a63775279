// Two ranks over one TCP connection of the loopback interface: a send and a receive for each message, and no header.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tools/collperf/peers/bare_pair.h"

namespace cohort::collperf {
namespace {

constexpr size_t kSumBytes = 256 << 10;  // for what comes to be added

class BareSockets final : public BarePair {
 public:
  explicit BareSockets(runtime::FileDescriptor socket) : socket_(std::move(socket)), staging_(kSumBytes) {}

  void Run(const BareStep& step) override {
    size_t sent = Send(step, 0);
    CopyBlock(step.own_to, step.own_from, step.own_bytes);
    for (size_t received = 0; sent < step.send_bytes || received < step.receive_bytes;) {
      sent += Send(step, sent);
      if (received < step.receive_bytes) received += Receive(step, received);
    }
  }
  bool TwinSums() const override { return false; }
  int ways(bool /*window*/) const override { return 1; }
  void UseWay(bool /*window*/, int /*way*/) override {}
  std::byte* Window(int /*buffer*/, size_t /*bytes*/) override { return nullptr; }
  void ReleaseWindows() override {}

 private:
  size_t Send(const BareStep& step, size_t at) {
    if (at == step.send_bytes) return 0;
    const ssize_t n = ::send(socket_.get(), step.send + at, step.send_bytes - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) EndRank("send");
    return n < 0 ? 0 : static_cast<size_t>(n);
  }
  size_t Receive(const BareStep& step, size_t at) {
    const bool adds = step.addend != nullptr;
    const size_t left = step.receive_bytes - at;
    std::byte* const to = adds ? staging_.data() + partial_ : step.receive + at;
    const ssize_t n = ::recv(socket_.get(), to, adds ? std::min(left, kSumBytes) - partial_ : left, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) EndRank("recv");
    if (n < 0) return 0;
    if (!adds) return static_cast<size_t>(n);
    partial_ += static_cast<size_t>(n);
    const size_t whole = partial_ / sizeof(float) * sizeof(float);
    TakeBytes(step, staging_.data(), at, whole);
    std::copy_n(staging_.data() + whole, partial_ - whole, staging_.data());
    partial_ -= whole;
    return whole;
  }

  runtime::FileDescriptor socket_;
  std::vector<std::byte> staging_;
  size_t partial_ = 0;  // bytes of an element that has not come whole
};

absl::StatusOr<runtime::FileDescriptor> Listen(sockaddr_in* address) {
  runtime::FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = sizeof *address;
  if (!listener.valid() || ::bind(listener.get(), reinterpret_cast<sockaddr*>(address), length) != 0 ||
      ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(address), &length) != 0) {
    return runtime::ErrnoStatus(errno, "cannot listen");
  }
  return listener;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BarePair>> JoinBareSockets(const std::string& folder, int rank) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  runtime::FileDescriptor socket;
  if (rank == 0) {
    auto listener = Listen(&address);
    if (!listener.ok()) return listener.status();
    if (absl::Status left = LeaveNote(folder, std::to_string(ntohs(address.sin_port))); !left.ok()) return left;
    socket = runtime::FileDescriptor(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  } else {
    const auto note = ReadNote(folder);
    if (!note.ok()) return note.status();
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(*note)));
    socket = runtime::FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      return runtime::ErrnoStatus(errno, "cannot connect");
    }
  }
  const int on = 1;
  if (!socket.valid() || ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    return runtime::ErrnoStatus(errno, "cannot use the connection");
  }
  return std::make_unique<BareSockets>(std::move(socket));
}

}  // namespace cohort::collperf
