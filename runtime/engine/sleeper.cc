#include "cohort/runtime/engine/sleeper.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/futex.h"
#include "cohort/runtime/base/thread.h"

namespace cohort::runtime {

// A sleep on descriptors. A futex word is no descriptor, so a thread of its own, which does nothing else, sleeps on the
// wake word and makes the sleeper's eventfd readable.
class Sleeper::Epoll {
 public:
  explicit Epoll(RankControl& control)
      : control_(control), epoll_(epoll_create1(EPOLL_CLOEXEC)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    Watch(event_.get(), EPOLLIN);
    seen_ = control_.wake.load(std::memory_order_acquire);
    relay_ = StartThread("cohort-relay", [this] { Relay(); });
  }
  ~Epoll() {
    stop_.store(true, std::memory_order_release);
    control_.wake.fetch_add(1, std::memory_order_release);
    FutexWake(control_.wake, FutexScope::kShared);
    relay_.join();
  }
  bool valid() const { return epoll_.valid() && event_.valid(); }

  void Sleep(uint32_t token, std::span<const int> descriptors, Deadline deadline) {
    for (int descriptor : descriptors) Watch(descriptor, EPOLLIN | EPOLLONESHOT);
    sleeping_.store(true, std::memory_order_seq_cst);
    if (control_.wake.load(std::memory_order_seq_cst) == token) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
      epoll_event events[8];
      epoll_wait(epoll_.get(), events, 8, static_cast<int>(std::min<int64_t>(left, 1000)));
    }
    sleeping_.store(false, std::memory_order_relaxed);
    uint64_t count = 0;
    while (read(event_.get(), &count, sizeof count) > 0) {
    }
  }

 private:
  // A descriptor that was closed leaves the set by itself, and its number may come back: so the kernel is asked what
  // the set holds. One that fires once and is not slept on again stays silent.
  void Watch(int descriptor, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = descriptor;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &event) != 0 && errno == ENOENT) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event);
    }
  }

  void Relay() {
    uint32_t seen = seen_;
    while (!stop_.load(std::memory_order_acquire)) {
      FutexWait(control_.wake, seen, FutexScope::kShared, Deadline::Infinite());
      const uint32_t now = control_.wake.load(std::memory_order_seq_cst);
      if (now == seen) continue;
      seen = now;
      const uint64_t one = 1;
      if (sleeping_.load(std::memory_order_seq_cst) && write(event_.get(), &one, sizeof one) < 0) continue;
    }
  }

  RankControl& control_;
  FileDescriptor epoll_;
  FileDescriptor event_;
  uint32_t seen_ = 0;
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stop_{false};
  std::thread relay_;
};

Sleeper::Sleeper(Segment* segment) : segment_(segment), control_(segment->control(segment->local_rank())) {}
Sleeper::~Sleeper() = default;

uint32_t Sleeper::Announce() {
  const uint32_t token = control_.wake.load(std::memory_order_acquire);
  control_.parked.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return token;
}

void Sleeper::Withdraw() { control_.parked.fetch_sub(1, std::memory_order_relaxed); }

void Sleeper::Sleep(uint32_t token, std::span<const int> descriptors, Deadline deadline) {
  // A second sleeper leaves the descriptors to the first, who wakes it when its news arrive.
  if (!descriptors.empty() && !epoll_busy_.exchange(true, std::memory_order_acquire)) {
    if (epoll_ == nullptr) epoll_ = std::make_unique<Epoll>(control_);
    const bool valid = epoll_->valid();
    if (valid) epoll_->Sleep(token, descriptors, deadline);
    epoll_busy_.store(false, std::memory_order_release);
    if (valid) return;
  }
  FutexWait(control_.wake, token, FutexScope::kShared, deadline);
}

void Sleeper::WakeSelf() { segment_->Wake(segment_->local_rank()); }

}  // namespace cohort::runtime
