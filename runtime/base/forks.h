// Forked children: they inherit what is shared with other processes, and must not use it.
#pragma once

#include <atomic>
#include <cstdint>

namespace cohort::runtime {

// Knows whether this is the process that made it. A copy is of the same process. Any thread may ask.
class ForkWatch {
 public:
  ForkWatch() : forks_(Forks()), at_first_(forks_.load(std::memory_order_relaxed)) {}

  // Whether this process is a child, or a later descendant, of the one that made it. Relaxed, since only fork itself
  // changes the count.
  bool InChild() const { return forks_.load(std::memory_order_relaxed) != at_first_; }

 private:
  // The forks between the first call in an ancestor and this process, counted in the child.
  static const std::atomic<uint64_t>& Forks();

  const std::atomic<uint64_t>& forks_;
  const uint64_t at_first_;
};

// Takes what a forked child inherited and can't destroy: it lacks the threads that a destructor would join, and the
// connections are its parent's. Never freed; leak checkers find it.
void LeaveToParent(const void* object);

}  // namespace cohort::runtime
