#include "cohort/launcher/front_end/standard_input.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace cohort::launcher {

StandardInput::StandardInput(EventLoop* loop, int fd, std::function<void(std::string bytes, bool end)> send,
                             std::function<void(const std::string& why)> complain)
    : loop_(loop), fd_(fd), send_(std::move(send)), complain_(std::move(complain)) {}

StandardInput::~StandardInput() { Pause(); }

void StandardInput::Want(uint64_t bytes) {
  if (!std::exchange(started_, true)) {
    terminal_ = ::isatty(fd_) == 1;
    if (terminal_) ::signal(SIGTTIN, SIG_IGN);  // should the look below be too early, reading fails instead
  }
  wanted_ += bytes;
  if (!watched_ && timer_ == 0) GoOn();
}

void StandardInput::Close() {
  Pause();
  if (std::exchange(ended_, true)) return;
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0) return;
  ::dup2(null, fd_);
  if (null != fd_) ::close(null);
}

bool StandardInput::InBackground() const {
  const pid_t foreground = terminal_ ? ::tcgetpgrp(fd_) : -1;
  return foreground > 0 && foreground != ::getpgrp();
}

void StandardInput::Pause() {
  if (std::exchange(watched_, false)) loop_->Unwatch(fd_);
  loop_->Cancel(std::exchange(timer_, 0));
}

void StandardInput::GoOn() {
  if (ended_ || wanted_ == 0) return;
  if (InBackground()) {
    timer_ = loop_->After(kLookInterval, [this] {
      timer_ = 0;
      GoOn();
    });
    return;
  }
  watched_ = loop_->Watch(fd_, EPOLLIN, [this](uint32_t) { ReadOnce(); });
  if (watched_) return;
  // A plain file, which can always be read: between other events.
  timer_ = loop_->After(std::chrono::nanoseconds(0), [this] {
    timer_ = 0;
    ReadOnce();
  });
}

void StandardInput::ReadOnce() {
  Pause();
  if (InBackground()) return GoOn();
  std::string bytes(std::min<uint64_t>(wanted_, 64u << 10), '\0');
  const ssize_t n = ::read(fd_, bytes.data(), bytes.size());
  const bool later = n < 0 && (errno == EINTR || errno == EAGAIN || (errno == EIO && InBackground()));
  if (n < 0 && !later) complain_(std::strerror(errno));
  if (!later) {
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    wanted_ -= bytes.size();
    ended_ = n <= 0;
    send_(std::move(bytes), ended_);
  }
  GoOn();
}

}  // namespace cohort::launcher
