// dlaunch's standard input on its way to rank 0: read only when the rank has room for it, and never so that a terminal
// would stop a job that runs in the background.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/front_end/job_plan.h"
#include "cohort/launcher/front_end/printing/line_turns.h"

namespace cohort::launcher {

class StandardInput {
 public:
  static constexpr std::chrono::milliseconds kLookInterval{500};  // at whether we are in the foreground again

  // `send` gets the bytes in their order, `end` with the last. The user is told before if that is no true end. `fd` is
  // not owned. Nothing is read before Want.
  StandardInput(EventLoop* loop, LineTurns* turns, int fd, std::function<void(std::string bytes, bool end)> send)
      : loop_(loop), turns_(turns), fd_(fd), send_(std::move(send)) {}
  ~StandardInput();
  StandardInput(const StandardInput&) = delete;
  StandardInput& operator=(const StandardInput&) = delete;

  // The rank has room for `bytes` bytes more. From the first call on SIGTTIN is ignored where `fd` is a terminal: start
  // other programs before.
  void Want(uint64_t bytes);
  // Nobody reads any more: /dev/null takes the place of `fd`, so that a program that writes to us learns it.
  void Close();

 private:
  bool InBackground() const;
  void GoOn();
  void Pause();
  void ReadOnce();

  EventLoop* const loop_;
  LineTurns* const turns_;
  const int fd_;
  const std::function<void(std::string bytes, bool end)> send_;
  uint64_t wanted_ = 0;
  bool terminal_ = false;
  bool started_ = false;
  bool ended_ = false;
  bool watched_ = false;
  EventLoop::TimerId timer_ = 0;
};

// Says where the standard input is, if it has something that rank 0 of `job`, on another machine, does not get: now, or
// when something comes.
void TellOfUnreadInput(const Job& job, EventLoop* loop, LineTurns* turns);

}  // namespace cohort::launcher
