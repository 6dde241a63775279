#include "cohort/launcher/commands/top_keys.h"

#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <utility>

namespace cohort::launcher {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
termios as_before;
termios keys_at_once;
volatile std::sig_atomic_t wanted = 0;  // a TopKeys lives

// A process that touches the terminal from its background is stopped for it.
bool InFront() {
  const pid_t in_front = ::tcgetpgrp(STDIN_FILENO);  // -1: another session's terminal, which stops nobody
  return in_front <= 0 || in_front == ::getpgrp();
}

void SetTerminal(const termios& settings) {
  if (InFront()) ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
}

// The default action instead of ours. Inside the handler of `signal` it comes when that has returned.
void TakeDefault(int signal) {
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void RestoreAndDie(int signal) {
  SetTerminal(as_before);
  TakeDefault(signal);
}

// Ctrl-Z. Not every shell restores its terminal.
void RestoreAndStop(int signal) {
  const int saved = errno;
  SetTerminal(as_before);
  TakeDefault(signal);
  sigset_t only;
  sigset_t others;
  ::sigemptyset(&only);
  ::sigaddset(&only, signal);
  ::sigprocmask(SIG_UNBLOCK, &only, &others);  // stops here
  ::sigprocmask(SIG_SETMASK, &others, nullptr);
  ::signal(signal, &RestoreAndStop);
  if (wanted != 0) SetTerminal(keys_at_once);
  errno = saved;
}

// By `fg` after `bg`, or after a SIGSTOP: the terminal is as the shell has it.
void TakeKeysAgain(int /*signal*/) {
  const int saved = errno;
  if (wanted != 0) SetTerminal(keys_at_once);
  errno = saved;
}

// Signals that nohup or a shell without jobs has us ignore stay ignored.
void Handle(int signal, void (*handler)(int)) {
  if (::signal(signal, handler) == SIG_IGN) ::signal(signal, SIG_IGN);
}

}  // namespace

TopKeys::TopKeys() {
  if (::tcgetattr(STDIN_FILENO, &as_before) != 0 || !InFront()) return;
  keys_at_once = as_before;
  keys_at_once.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys_at_once.c_cc[VMIN] = 0;  // a read never waits
  keys_at_once.c_cc[VTIME] = 0;
  wanted = 1;
  for (const int signal : kEnding) Handle(signal, &RestoreAndDie);
  Handle(SIGTSTP, &RestoreAndStop);
  Handle(SIGCONT, &TakeKeysAgain);
  SetTerminal(keys_at_once);
}

TopKeys::~TopKeys() {
  if (wanted == 0) return;
  wanted = 0;
  SetTerminal(as_before);
}

int TopKeys::fd() {
  const bool was_in_front = std::exchange(in_front_, InFront());
  if (wanted == 0 || !in_front_) return -1;
  if (!was_in_front) SetTerminal(keys_at_once);
  return STDIN_FILENO;
}

bool TopKeys::AskedToQuit() {
  if (fd() < 0) return false;  // sent to the background meanwhile: the keys are others'
  char typed[64];
  const ssize_t n = ::read(STDIN_FILENO, typed, sizeof typed);
  for (ssize_t i = 0; i < n; ++i) {
    if (typed[i] == 'q' || typed[i] == 'Q') return true;
  }
  return n < 0 && errno != EINTR && errno != EAGAIN;  // the terminal has gone
}

}  // namespace cohort::launcher
