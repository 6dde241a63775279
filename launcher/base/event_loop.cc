#include "cohort/launcher/base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

uint64_t Pack(int fd, uint32_t generation) { return (uint64_t{generation} << 32) | static_cast<uint32_t>(fd); }

}  // namespace

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_.valid() || !wake_.valid()) {  // before anything has begun
    const std::string error = std::string("no descriptors for an event loop: ") + std::strerror(errno);
    std::fprintf(stderr, "dlaunch: %s\n", WithRemedy(Remedy::kDescriptorLimit, error + "; raise ulimit -n").c_str());
    std::_Exit(125);
  }
  Watch(wake_.get(), EPOLLIN, [this](uint32_t) {
    uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);
  });
}

bool EventLoop::Watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  Watcher& watcher = watchers_[fd];
  const bool known = watcher.ready != nullptr;
  watcher.generation = next_generation_++;
  watcher.ready = std::make_shared<std::function<void(uint32_t)>>(std::move(ready));
  epoll_event event{};
  event.events = events;
  event.data.u64 = Pack(fd, watcher.generation);
  if (::epoll_ctl(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0) return true;
  watchers_.erase(fd);
  return false;
}

void EventLoop::SetEvents(int fd, uint32_t events) {
  const auto found = watchers_.find(fd);
  if (found == watchers_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = Pack(fd, found->second.generation);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Unwatch(int fd) {
  if (watchers_.erase(fd) == 0) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::After(std::chrono::nanoseconds delay, std::function<void()> fn) {
  const TimerId id = next_timer_++;
  const Clock::time_point time = Clock::now() + delay;
  timers_.emplace(std::pair(time, id), std::move(fn));
  timer_times_.emplace(id, time);
  return id;
}

void EventLoop::Cancel(TimerId timer) {
  const auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase(std::pair(found->second, timer));
  timer_times_.erase(found);
}

void EventLoop::Post(std::function<void()> fn) {
  {
    runtime::MutexLock lock(mutex_);
    posted_.push_back(std::move(fn));
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

int EventLoop::MillisecondsToNextTimer() const {
  if (timers_.empty()) return -1;
  const auto left = timers_.begin()->first.first - Clock::now();
  if (left <= Clock::duration::zero()) return 0;
  const auto rounded_up = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::min<int64_t>(rounded_up, 60'000));
}

void EventLoop::RunTimers() {
  const Clock::time_point now = Clock::now();
  while (running_ && !timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

void EventLoop::RunPosted() {
  std::vector<std::function<void()>> posted;
  {
    runtime::MutexLock lock(mutex_);
    posted.swap(posted_);
  }
  for (auto& fn : posted) fn();
}

void EventLoop::Run() {
  running_ = true;
  epoll_event events[64];
  while (running_) {
    const int count = ::epoll_wait(epoll_.get(), events, 64, MillisecondsToNextTimer());
    for (int i = 0; i < count && running_; ++i) {
      const int fd = static_cast<int>(events[i].data.u64 & 0xffffffffu);
      const auto found = watchers_.find(fd);
      // Dropped, or dropped and reused, by an earlier callback of this round.
      if (found == watchers_.end() || found->second.generation != events[i].data.u64 >> 32) continue;
      const auto ready = found->second.ready;
      (*ready)(events[i].events);
    }
    RunPosted();
    RunTimers();
  }
}

}  // namespace cohort::launcher
