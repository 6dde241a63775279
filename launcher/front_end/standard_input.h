// dlaunch's standard input on its way to rank 0: read only when the rank has room for it, and never so that a terminal
// would stop a job that runs in the background.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

class StandardInput {
 public:
  static constexpr std::chrono::milliseconds kLookInterval{500};  // at whether we are in the foreground again

  // `send` gets the bytes in their order, `end` with the last; `complain` hears before why that is no true end. `fd` is
  // not owned. Nothing is read before Want.
  StandardInput(EventLoop* loop, int fd, std::function<void(std::string bytes, bool end)> send,
                std::function<void(const std::string& why)> complain);
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

  EventLoop* loop_;
  const int fd_;
  std::function<void(std::string bytes, bool end)> send_;
  std::function<void(const std::string& why)> complain_;
  uint64_t wanted_ = 0;
  bool terminal_ = false;
  bool started_ = false;
  bool ended_ = false;
  bool watched_ = false;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace cohort::launcher
