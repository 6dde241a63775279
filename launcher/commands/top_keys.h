// Reads what is typed at `dlaunch top`'s terminal.
#pragma once

namespace cohort::launcher {

// Takes keys as they are typed, without showing them, as long as it lives and this process is in its terminal's
// foreground; the terminal is as before afterwards, and while the process is stopped, also where a signal ends it. One
// in a process. Does nothing where the standard input is no terminal, or this process begins in its background.
class TopKeys {
 public:
  TopKeys();
  ~TopKeys();
  TopKeys(const TopKeys&) = delete;
  TopKeys& operator=(const TopKeys&) = delete;

  // To be polled for keys, and asked for before each poll; -1 where nobody can type any now. Takes the terminal again
  // where this process is back in its foreground: not every shell's `fg` sends a signal.
  int fd();
  // Whether q was among the keys. Call when there are some.
  bool AskedToQuit();

 private:
  bool in_front_ = true;
};

}  // namespace cohort::launcher
