// One thread's epoll loop: descriptors, timers, and work posted by other threads. Everything runs on the thread that
// calls Run. Other threads may call only Post.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {

class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using TimerId = uint64_t;

  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `ready` with the epoll events whenever `fd` (not owned) has any of `events`. A descriptor has one watch. Any
  // callback may drop a watch. Returns false if epoll refuses the descriptor (a plain file).
  bool Watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  // Changes the events of a watched descriptor; 0 leaves errors and hang-ups only.
  void SetEvents(int fd, uint32_t events);
  // Ends the watch. Call it before the descriptor is closed.
  void Unwatch(int fd);

  // Calls `fn` once after `delay`.
  TimerId After(std::chrono::nanoseconds delay, std::function<void()> fn);
  // Cancels a timer. One that has fired, or 0, is ignored.
  void Cancel(TimerId timer);

  // Runs `fn` on the loop's thread soon, in the order of posting. Thread-safe.
  void Post(std::function<void()> fn) COHORT_EXCLUDES(mutex_);

  // Dispatches until Quit. Blocks.
  void Run();
  void Quit() { running_ = false; }

 private:
  struct Watcher {
    uint32_t generation = 0;
    std::shared_ptr<std::function<void(uint32_t)>> ready;
  };
  int MillisecondsToNextTimer() const;
  void RunTimers();
  void RunPosted() COHORT_EXCLUDES(mutex_);

  runtime::FileDescriptor epoll_;
  runtime::FileDescriptor wake_;
  bool running_ = false;
  uint32_t next_generation_ = 1;
  std::map<int, Watcher> watchers_;
  TimerId next_timer_ = 1;
  std::map<std::pair<Clock::time_point, TimerId>, std::function<void()>> timers_;
  std::map<TimerId, Clock::time_point> timer_times_;
  runtime::Mutex mutex_;
  std::vector<std::function<void()>> posted_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::launcher
