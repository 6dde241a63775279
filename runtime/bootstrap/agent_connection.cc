#include "cohort/runtime/bootstrap/agent_connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/agent_protocol.h"

namespace cohort::runtime {
namespace {

constexpr size_t kMaxUnsent = 1024;  // messages; beyond them the oldest news would help nobody

// Waits for events on `fd`, or until `interrupt` (an eventfd, or -1) is written to; false when the deadline passes
// first.
bool Await(int fd, short events, Deadline deadline, int interrupt = -1) {  // NOLINT(google-runtime-int): poll's type
  pollfd entries[2] = {{fd, events, 0}, {interrupt, POLLIN, 0}};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
    const int result = poll(entries, 2, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (result > 0 || (result < 0 && errno != EINTR)) return true;
    if (deadline.passed()) return false;
  }
}

uint64_t RequestOf(const v1::AgentMessage& message) {
  switch (message.kind_case()) {
    case v1::AgentMessage::kNodes:
      return message.nodes().request();
    case v1::AgentMessage::kPut:
      return message.put().request();
    case v1::AgentMessage::kGet:
      return message.get().request();
    case v1::AgentMessage::kVariable:
      return message.variable().request();
    default:
      return 0;
  }
}

}  // namespace

absl::Status AgentConnection::Open(const std::string& address, Deadline deadline) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (address.size() < 2 || address.size() > sizeof name.sun_path || address[0] != '@') {
    return absl::InvalidArgumentError("COHORT_AGENT=" + address + " is no address of an agent");
  }
  std::memcpy(name.sun_path + 1, address.data() + 1, address.size() - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  socket_ = FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  interrupt_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!socket_.valid() || !interrupt_.valid()) return ErrnoStatus(errno, "cannot make a socket to the agent");
  while (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return absl::UnavailableError("the agent named in COHORT_AGENT does not answer: " + ErrnoText(errno) +
                                    "; the job may have ended, or the variable was kept from an earlier one");
    }
    // The agent's queue of connections is full: other ranks connect too.
    if (deadline.passed()) return absl::DeadlineExceededError("the agent accepted no connection in time");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return absl::OkStatus();
}

absl::Status AgentConnection::CheckPeer() {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return ErrnoStatus(errno, "cannot learn who the agent is");
  }
  if (peer.uid != geteuid() && peer.uid != 0) {
    return absl::PermissionDeniedError("the socket named in COHORT_AGENT belongs to another user, " +
                                       std::to_string(peer.uid) + "; it is not this job's agent");
  }
  agent_pid_ = peer.pid;
  return absl::OkStatus();
}

absl::Status AgentConnection::Connect(const std::string& address, const v1::RankMessage& hello, Deadline deadline,
                                      v1::AgentMessage* first, FileDescriptor* descriptor) {
  COHORT_RETURN_IF_ERROR(Open(address, deadline));
  COHORT_RETURN_IF_ERROR(CheckPeer());
  COHORT_RETURN_IF_ERROR(Send(hello.SerializeAsString(), deadline));
  MutexLock lock(mutex_);
  while (news_.empty()) {
    if (!Await(socket_.get(), POLLIN, deadline)) {
      return absl::DeadlineExceededError("the agent (pid " + std::to_string(agent_pid_) +
                                         ") has not answered; are all nodes of the job up?");
    }
    ReceiveOne(descriptor);
    COHORT_RETURN_IF_ERROR(status_);
  }
  *first = std::move(news_.front());
  news_.pop_front();
  UpdatePending();
  return absl::OkStatus();
}

absl::Status AgentConnection::Send(const std::string& packet, Deadline deadline) {
  if (packet.size() > kMaxAgentPacket) {
    return absl::InvalidArgumentError("a message to the agent of " + std::to_string(packet.size()) +
                                      " bytes; the limit is 65536");
  }
  while (send(socket_.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return absl::UnavailableError("the agent has gone: " + ErrnoText(errno));
    if (!Await(socket_.get(), POLLOUT, deadline)) {
      return absl::DeadlineExceededError("the agent does not read its messages");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::AgentMessage> AgentConnection::Call(const v1::RankMessage& message, uint64_t request,
                                                       Deadline deadline) {
  {
    MutexLock lock(mutex_);
    COHORT_RETURN_IF_ERROR(status_);
    waiting_[request] = true;
  }
  const absl::Status sent = Send(message.SerializeAsString(), deadline);
  MutexLock lock(mutex_);
  absl::Status failure = sent;
  while (failure.ok() && answers_.find(request) == answers_.end()) {
    Drain();
    if (answers_.find(request) != answers_.end()) break;
    failure = status_;
    if (failure.ok() && deadline.passed()) failure = absl::DeadlineExceededError("the agent has not answered in time");
    if (!failure.ok()) break;
    if (reading_) {
      received_.Wait(mutex_, deadline);
      continue;
    }
    reading_ = true;
    mutex_.Unlock();
    Await(socket_.get(), POLLIN, deadline, interrupt_.get());
    mutex_.Lock();
    reading_ = false;
    uint64_t count = 0;
    while (read(interrupt_.get(), &count, sizeof count) < 0 && errno == EINTR) {
    }
    Drain();
    received_.NotifyAll();
  }
  waiting_.erase(request);
  const auto node = answers_.extract(request);
  received_.NotifyAll();  // somebody else may have to read now
  if (!node.empty()) return std::move(node.mapped());
  return failure;
}

void AgentConnection::Post(const v1::RankMessage& message) {
  MutexLock lock(mutex_);
  if (!status_.ok() || unsent_.size() >= kMaxUnsent) return;
  unsent_.push_back(message.SerializeAsString());
  Flush();
  UpdatePending();
}

void AgentConnection::Flush() {
  while (!unsent_.empty()) {
    const std::string& packet = unsent_.front();
    if (send(socket_.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == ENOBUFS) return;
      // Too large, or the agent has gone, which the next read says.
    }
    unsent_.pop_front();
  }
}

bool AgentConnection::Receive() {
  MutexLock lock(mutex_);
  Flush();
  Drain();
  UpdatePending();
  received_.NotifyAll();
  return !news_.empty() || !status_.ok();
}

std::deque<v1::AgentMessage> AgentConnection::Take() {
  MutexLock lock(mutex_);
  std::deque<v1::AgentMessage> news = std::exchange(news_, {});
  UpdatePending();
  return news;
}

absl::Status AgentConnection::SendLast(const v1::RankMessage& message, Deadline deadline) {
  {
    MutexLock lock(mutex_);
    unsent_.push_back(message.SerializeAsString());  // behind what is queued, however much that is
  }
  while (true) {
    Receive();
    for (const v1::AgentMessage& news : Take()) {
      if (news.has_refused()) return absl::FailedPreconditionError(news.refused());
    }
    if (!status().ok()) return absl::OkStatus();
    if (!Await(socket_.get(), AllSent() ? POLLIN : POLLIN | POLLOUT, deadline)) {
      return absl::DeadlineExceededError("the agent (pid " + std::to_string(agent_pid_) +
                                         ") has not let this rank go in time");
    }
  }
}

bool AgentConnection::AllSent() {
  MutexLock lock(mutex_);
  return unsent_.empty();
}

absl::Status AgentConnection::status() {
  MutexLock lock(mutex_);
  return status_;
}

void AgentConnection::Drain() {
  FileDescriptor unexpected;  // only the first message carries one
  while (status_.ok() && ReceiveOne(&unexpected)) {
  }
  UpdatePending();
}

// Reads one message; false when there is none.
bool AgentConnection::ReceiveOne(FileDescriptor* descriptor) {
  buffer_.resize(kMaxAgentPacket);
  iovec data{buffer_.data(), buffer_.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t bytes = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes < 0) {
    if (errno == EAGAIN || errno == EINTR) return errno == EINTR;
    Break(ErrnoText(errno));
    return false;
  }
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      *descriptor = FileDescriptor(fd);
    }
  }
  if (bytes == 0) {
    Break("it has closed the connection");
    return false;
  }
  v1::AgentMessage message;
  if ((header.msg_flags & MSG_TRUNC) != 0 || !message.ParseFromArray(buffer_.data(), static_cast<int>(bytes))) {
    Break("it sent something that is no message");
    return false;
  }
  Sort(std::move(message));
  return true;
}

void AgentConnection::Sort(v1::AgentMessage message) {
  const uint64_t request = RequestOf(message);
  if (request == 0) {
    news_.push_back(std::move(message));
  } else if (waiting_.find(request) != waiting_.end()) {
    answers_[request] = std::move(message);
    // It may be the answer for the thread that sleeps in poll(), and read by another.
    if (reading_) Interrupt();
  }
  // Else an answer that came after its deadline: nobody wants it.
}

void AgentConnection::Interrupt() {
  const uint64_t one = 1;
  while (write(interrupt_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void AgentConnection::Break(const std::string& why) {
  if (status_.ok()) {
    status_ = absl::UnavailableError("the agent (pid " + std::to_string(agent_pid_) + ") is gone: " + why);
  }
}

void AgentConnection::UpdatePending() {
  pending_.store(!news_.empty() || !unsent_.empty() || !status_.ok(), std::memory_order_relaxed);
}

}  // namespace cohort::runtime
