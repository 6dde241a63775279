// The one lock of the project: std::mutex with Clang's thread-safety annotations. absl::Mutex is not used because
// ThreadSanitizer cannot see into Debian's build of it.
#pragma once

#include <condition_variable>
#include <mutex>

#include "cohort/runtime/base/deadline.h"

#if defined(__clang__)
#define COHORT_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define COHORT_THREAD_ANNOTATION(x)
#endif
#define COHORT_CAPABILITY(x) COHORT_THREAD_ANNOTATION(capability(x))
#define COHORT_SCOPED_CAPABILITY COHORT_THREAD_ANNOTATION(scoped_lockable)
#define COHORT_GUARDED_BY(x) COHORT_THREAD_ANNOTATION(guarded_by(x))
#define COHORT_REQUIRES(...) COHORT_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define COHORT_EXCLUDES(...) COHORT_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define COHORT_ACQUIRE(...) COHORT_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define COHORT_RELEASE(...) COHORT_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define COHORT_NO_THREAD_SAFETY_ANALYSIS COHORT_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace cohort::runtime {

class COHORT_CAPABILITY("mutex") Mutex {
 public:
  void Lock() COHORT_ACQUIRE() { mutex_.lock(); }
  void Unlock() COHORT_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class COHORT_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) COHORT_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() COHORT_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // Waits for a notification, a spurious wake-up or the deadline. Returns false when the deadline has passed. The
  // caller checks its condition in a loop.
  bool Wait(Mutex& mutex, Deadline deadline = Deadline::Infinite()) COHORT_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    bool in_time = true;
    if (deadline.infinite()) {
      condition_.wait(lock);
    } else {
      in_time = condition_.wait_until(lock, deadline.time()) == std::cv_status::no_timeout;
    }
    lock.release();
    return in_time;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace cohort::runtime
