// Finds where one rank is, as text.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/launcher/agent/stacks/python_hook.h"
#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

// The place of the main thread of a rank's program, in few lines.
struct RankPlace {
  std::vector<std::string> frames;  // of Python, innermost first: "/x/train.py:30 in load_batch"; none: none is known
  std::string state;                // "python3 sleeps in futex"; empty: the process is gone
};

class StackGatherer {
 public:
  // All threads as text, and the place of the main one.
  using Done = std::function<void(const std::string& text, const RankPlace& place)>;
  enum class Wish {
    kAll,    // of all processes and threads
    kPlace,  // of the main thread alone; the text has no more
  };
  // Then what there is counts.
  static constexpr std::chrono::milliseconds kLimit{2000};
  // A text is cut there.
  static constexpr size_t kMaxText = 16u << 10;

  explicit StackGatherer(EventLoop* loop) : loop_(loop) {}
  ~StackGatherer() { loop_->Cancel(timer_); }
  StackGatherer(const StackGatherer&) = delete;
  StackGatherer& operator=(const StackGatherer&) = delete;

  // Looks at the rank whose program is `program`, and at the Pythons that its hook knows. `done` is called once, within
  // kLimit, unless this object goes before; at once, from within, where no Python is asked. Those that ask while it
  // looks get the same answer.
  void Gather(Wish wish, std::shared_ptr<PythonHook> hook, pid_t program, Done done);
  // As far as it is known by now.
  const RankPlace& place() const { return place_; }

 private:
  static constexpr std::chrono::milliseconds kLook{10};
  // faulthandler does not say when it is through: what has not grown for so long is whole.
  static constexpr std::chrono::milliseconds kQuiet{100};
  // The main thread's frames come last and at once.
  static constexpr std::chrono::milliseconds kPlaceQuiet{20};

  static constexpr size_t kMaxDump = 256u << 10;

  void AskNext();
  void Look();
  bool IsWhole(EventLoop::Clock::time_point now) const;
  uint64_t MainThread() const;
  void Finish();

  EventLoop* loop_;
  EventLoop::TimerId timer_ = 0;
  Wish wish_ = Wish::kAll;
  std::vector<Done> waiting_;
  std::shared_ptr<PythonHook> hook_;
  std::vector<pid_t> processes_;  // to look at, from next_ on
  size_t next_ = 0;
  std::vector<PythonHook::Listener> listeners_;
  std::string text_;
  RankPlace place_;
  off_t begin_ = 0;  // of what the one that was asked writes
  off_t size_ = 0;
  EventLoop::Clock::time_point grew_{};
  EventLoop::Clock::time_point limit_{};
  EventLoop::Clock::time_point ask_until_{};  // for the process that was asked: its part of what was left
};

}  // namespace cohort::launcher
