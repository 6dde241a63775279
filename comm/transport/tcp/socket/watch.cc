#include "cohort/comm/transport/tcp/socket/watch.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <limits>

#include "cohort/runtime/base/errno_status.h"

namespace cohort::comm::tcp {
namespace {

constexpr uint64_t kSignal = std::numeric_limits<uint64_t>::max();

epoll_event EventOf(uint64_t token) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = token;
  return event;
}

}  // namespace

absl::Status Watch::Open() {
  epoll_ = runtime::FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  signal_ = runtime::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = kSignal;
  if (epoll_.valid() && signal_.valid() && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, signal_.get(), &event) == 0) {
    return absl::OkStatus();
  }
  return runtime::ErrnoStatus(errno, "making an epoll descriptor for connections to other nodes");
}

bool Watch::Add(int descriptor, uint64_t token) {
  epoll_event event = EventOf(token);
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

bool Watch::Rename(int descriptor, uint64_t token) {
  epoll_event event = EventOf(token);
  return epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &event) == 0;
}

bool Watch::Look(const std::function<void(uint64_t token, bool ending)>& event) {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& one = events[static_cast<size_t>(i)];
    if (one.data.u64 == kSignal) continue;
    event(one.data.u64, (one.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
  }
  return count > 0;
}

void Watch::Signal() {
  // A full counter has woken the owner already.
  [[maybe_unused]] const int result = eventfd_write(signal_.get(), 1);
}

}  // namespace cohort::comm::tcp
