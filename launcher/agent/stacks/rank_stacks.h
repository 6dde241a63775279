// The places of a node's ranks, for `dlaunch stacks` and before a rank is told to end. A rank is named by the pid of
// its process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cohort/launcher/agent/stacks/python_hook.h"
#include "cohort/launcher/agent/stacks/stack_gatherer.h"
#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

class RankStacks {
 public:
  explicit RankStacks(EventLoop* loop) : loop_(loop) {}
  ~RankStacks();
  RankStacks(const RankStacks&) = delete;
  RankStacks& operator=(const RankStacks&) = delete;

  // The stacks of all threads of a rank, to `done`, unless this object goes before. One rank begins in each turn of the
  // loop, since it takes some milliseconds to read what the kernel tells of hundreds of threads.
  void Gather(pid_t rank, std::shared_ptr<PythonHook> hook, pid_t program,
              std::function<void(const std::string& text)> done);
  // The place of a rank's main thread, to `done` within `limit`, perhaps from within. One at a time of each rank.
  void FindPlace(pid_t rank, std::shared_ptr<PythonHook> hook, pid_t program, std::chrono::milliseconds limit,
                 std::function<void(const RankPlace& place)> done);

 private:
  struct OfRank {
    explicit OfRank(EventLoop* loop) : gatherer(loop) {}
    StackGatherer gatherer;
    EventLoop::TimerId limit = 0;
    std::function<void(const RankPlace& place)> place_wanted;
  };

  OfRank& Of(pid_t rank);
  void BeginNext();

  EventLoop* loop_;
  EventLoop::TimerId timer_ = 0;
  std::deque<std::function<void()>> to_begin_;
  std::map<pid_t, std::unique_ptr<OfRank>> ranks_;  // that were asked for
};

}  // namespace cohort::launcher
