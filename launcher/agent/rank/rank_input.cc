#include "cohort/launcher/agent/rank/rank_input.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace cohort::launcher {

RankInput::RankInput(EventLoop* loop, runtime::FileDescriptor pipe, Want want)
    : loop_(loop), pipe_(std::move(pipe)), want_(std::move(want)) {
  ::fcntl(pipe_.get(), F_SETFL, ::fcntl(pipe_.get(), F_GETFL) | O_NONBLOCK);
  loop_->Watch(pipe_.get(), 0, [this](uint32_t events) {
    if ((events & EPOLLERR) == 0) return WriteSome();
    Close();  // nobody reads any more
    want_(0, true);
  });
  want_(kWindow, false);
}

RankInput::~RankInput() { Close(); }

void RankInput::Take(std::string_view bytes, bool end) {
  if (!pipe_.valid()) return;
  pending_.append(bytes);
  end_ = end_ || end;
  WriteSome();
}

void RankInput::WriteSome() {
  uint64_t taken = 0;
  while (written_ < pending_.size()) {
    const ssize_t n = ::write(pipe_.get(), pending_.data() + written_, pending_.size() - written_);
    if (n > 0) {
      written_ += static_cast<size_t>(n);
      taken += static_cast<uint64_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      break;
    } else if (n == 0 || errno != EINTR) {
      Close();
      return want_(0, true);
    }
  }
  if (written_ == pending_.size() || written_ > kWindow) {
    pending_.erase(0, written_);
    written_ = 0;
  }
  if (pending_.empty() && end_) return Close();
  loop_->SetEvents(pipe_.get(), pending_.empty() ? 0 : uint32_t{EPOLLOUT});
  if (taken > 0) want_(taken, false);
}

void RankInput::Close() {
  if (!pipe_.valid()) return;
  loop_->Unwatch(pipe_.get());
  pipe_.Close();
}

}  // namespace cohort::launcher
