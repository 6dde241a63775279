// A child process that does one thing, for those who look at it.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "cohort/launcher/base/pipe.h"

namespace cohort::launcher {

class WatchedChild {
 public:
  // Runs `work` in a child of this process, with a pipe from which nothing ever comes.
  explicit WatchedChild(const std::function<void(int empty_pipe)>& work) {
    EXPECT_TRUE(pipe_.Open());
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    work(pipe_.read_end.get());
    ::_exit(0);
  }
  ~WatchedChild() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  WatchedChild(const WatchedChild&) = delete;
  WatchedChild& operator=(const WatchedChild&) = delete;

  pid_t pid() const { return pid_; }

 private:
  Pipe pipe_;
  pid_t pid_ = -1;
};

}  // namespace cohort::launcher
