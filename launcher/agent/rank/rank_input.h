// The standard input of the one rank that gets dlaunch's: what comes is written to its pipe as the rank takes it, and
// only so much is asked for as there is room, so that a slow reader slows the program that writes to dlaunch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

class RankInput {
 public:
  static constexpr uint64_t kWindow = 256u << 10;  // bytes that are on their way at most
  // `bytes`: so much more can be sent. `closed`: nothing can ever, the rank has closed its input or ended.
  using Want = std::function<void(uint64_t bytes, bool closed)>;

  // `pipe`: the write end; it becomes non-blocking. Asks for the first bytes at once.
  RankInput(EventLoop* loop, runtime::FileDescriptor pipe, Want want);
  ~RankInput();
  RankInput(const RankInput&) = delete;
  RankInput& operator=(const RankInput&) = delete;

  // The rank lives on in another epoch, and what was asked for before still holds: from here on `want` is told.
  void GoOn(Want want) { want_ = std::move(want); }
  // The next bytes; `end`: there are no more, and the rank reads the end of its input after them.
  void Take(std::string_view bytes, bool end);

 private:
  void WriteSome();
  void Close();

  EventLoop* loop_;
  runtime::FileDescriptor pipe_;
  Want want_;
  std::string pending_;
  size_t written_ = 0;  // of pending_
  bool end_ = false;
};

}  // namespace cohort::launcher
