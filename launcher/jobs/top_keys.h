// What is typed at `dlaunch top`'s terminal.
#pragma once

#include <termios.h>

namespace cohort::launcher {

// Takes keys as they are typed, without showing them, as long as it lives; the terminal is as before afterwards, also
// where a signal ends the process. One in a process. Does nothing where the standard input is no terminal, or this
// process is in its background.
class TopKeys {
 public:
  TopKeys();
  ~TopKeys();
  TopKeys(const TopKeys&) = delete;
  TopKeys& operator=(const TopKeys&) = delete;

  // To be polled for keys; -1 where nobody can type any.
  int fd() const { return fd_; }
  // Whether q was among the keys. Call when there are some.
  bool AskedToQuit();

 private:
  int fd_ = -1;
  termios before_{};
};

}  // namespace cohort::launcher
