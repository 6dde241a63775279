#include "launcher/jobs/top_keys.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>

namespace cohort::launcher {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
termios as_before;

void RestoreAndDie(int signal) {
  ::tcsetattr(STDIN_FILENO, TCSANOW, &as_before);
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // pending until this has returned
}

}  // namespace

TopKeys::TopKeys() {
  const pid_t in_front = ::tcgetpgrp(STDIN_FILENO);  // -1: another session's terminal, which stops nobody
  if (::tcgetattr(STDIN_FILENO, &before_) != 0 || (in_front > 0 && in_front != ::getpgrp())) return;
  as_before = before_;
  for (const int signal : kEnding) {
    if (::signal(signal, &RestoreAndDie) == SIG_IGN) ::signal(signal, SIG_IGN);  // nohup: stays so
  }
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VMIN] = 0;  // a read never waits
  keys.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  fd_ = STDIN_FILENO;
}

TopKeys::~TopKeys() {
  if (fd_ >= 0) ::tcsetattr(fd_, TCSANOW, &before_);
}

bool TopKeys::AskedToQuit() {
  char typed[64];
  const ssize_t n = ::read(fd_, typed, sizeof typed);
  for (ssize_t i = 0; i < n; ++i) {
    if (typed[i] == 'q' || typed[i] == 'Q') return true;
  }
  return n < 0 && errno != EINTR && errno != EAGAIN;  // the terminal has gone
}

}  // namespace cohort::launcher
