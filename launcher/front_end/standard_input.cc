#include "cohort/launcher/front_end/standard_input.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {

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
  if (n < 0 && !later) {
    turns_->Announce("--stdin rank0: the standard input can't be read: " + std::string(std::strerror(errno)) +
                     "; rank 0 sees its end");
  }
  if (!later) {
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    wanted_ -= bytes.size();
    ended_ = n <= 0;
    send_(std::move(bytes), ended_);
  }
  GoOn();
}

void TellOfUnreadInput(const Job& job, EventLoop* loop, LineTurns* turns) {
  if (job.options.input != RankInputOption::kRedirected || ::isatty(STDIN_FILENO) == 1) return;
  const auto tell = [&job, turns] {
    const bool joined = job.nodes.spawner == SpawnerKind::kLocal;
    turns->Announce(
        WithRemedy(Remedy::kInputElsewhere,
                   "rank 0 is on " + job.nodes.nodes[0].name + ", " +
                       (joined ? "which joined" : "started by " + SpawnerName(job.nodes.spawner)) +
                       ", and does not get the standard input; give --stdin rank0 if it should, or --stdin none"));
  };
  struct stat input{};
  if (::fstat(STDIN_FILENO, &input) != 0) return;
  if (S_ISREG(input.st_mode)) {
    if (::lseek(STDIN_FILENO, 0, SEEK_CUR) < input.st_size) tell();
    return;
  }
  if (!S_ISFIFO(input.st_mode) && !S_ISSOCK(input.st_mode)) return;
  loop->Watch(STDIN_FILENO, EPOLLIN, [loop, tell](uint32_t) {
    loop->Unwatch(STDIN_FILENO);
    int bytes = 0;
    if (::ioctl(STDIN_FILENO, FIONREAD, &bytes) == 0 && bytes > 0) tell();
  });
}

}  // namespace cohort::launcher
