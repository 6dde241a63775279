// The places of a node's ranks, for `dlaunch stacks` and before a rank is told to end. A rank is named by the pid of
// its process; `program` is the process that counts as its program.
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

// The place of the main thread of a rank's program, in few lines.
struct RankPlace {
  std::vector<std::string> frames;  // of Python, innermost first: "/x/train.py:30 in load_batch"; none: none is known
  std::string state;                // "python3 sleeps in futex"; empty: the process is gone
};

// Looks where the main thread is, of the program or of the first Python that the rank has started, itself or through
// others. Below a millisecond as a rule.
RankPlace FindPlace(pid_t rank, pid_t program);

// All threads of the program and of the rank's Pythons as text, cut at 16 KiB. Takes some milliseconds where there are
// hundreds of threads.
std::string DescribeStacks(pid_t rank, pid_t program);

class RankStacks {
 public:
  explicit RankStacks(EventLoop* loop) : loop_(loop) {}
  ~RankStacks() { loop_->Cancel(timer_); }
  RankStacks(const RankStacks&) = delete;
  RankStacks& operator=(const RankStacks&) = delete;

  // DescribeStacks, to `done` from the loop, unless this object goes before. One rank in each turn.
  void Gather(pid_t rank, pid_t program, std::function<void(const std::string& text)> done);

 private:
  void DescribeNext();

  EventLoop* loop_;
  EventLoop::TimerId timer_ = 0;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace cohort::launcher
