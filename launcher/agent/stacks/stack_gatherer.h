// The stacks of one rank, as text.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/launcher/agent/stacks/python_hook.h"
#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

class StackGatherer {
 public:
  using Done = std::function<void(const std::string& text)>;
  // Then what there is counts.
  static constexpr std::chrono::milliseconds kLimit{2000};
  // A text is cut there.
  static constexpr size_t kMaxText = 16u << 10;

  explicit StackGatherer(EventLoop* loop) : loop_(loop) {}
  ~StackGatherer() { loop_->Cancel(timer_); }
  StackGatherer(const StackGatherer&) = delete;
  StackGatherer& operator=(const StackGatherer&) = delete;

  // Looks at the rank whose program is `program`, and at the Pythons that its hook knows. `done` is called once, within
  // kLimit, unless this object goes before. Those that ask while it looks get the same text.
  void Gather(std::shared_ptr<const PythonHook> hook, pid_t program, Done done);

 private:
  static constexpr std::chrono::milliseconds kLook{10};
  // faulthandler does not say when it is through: what has not grown for so long is whole.
  static constexpr std::chrono::milliseconds kQuiet{100};

  void AskNext();
  void Look();
  void Finish();

  EventLoop* loop_;
  EventLoop::TimerId timer_ = 0;
  std::vector<Done> waiting_;
  std::shared_ptr<const PythonHook> hook_;
  std::vector<pid_t> processes_;  // to look at, from next_ on
  size_t next_ = 0;
  std::vector<pid_t> listeners_;
  std::string text_;
  off_t begin_ = 0;  // of what the one that was asked writes
  off_t size_ = 0;
  EventLoop::Clock::time_point grew_{};
  EventLoop::Clock::time_point limit_{};
  EventLoop::Clock::time_point ask_until_{};  // for the process that was asked: its part of what was left
};

// The text of a dump of faulthandler, without what differs from rank to rank, such as addresses of threads. Pure.
std::string ReadDump(const std::string& dump);

}  // namespace cohort::launcher
