#include "cohort/launcher/agent/evidence/slow_answer.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/pipe.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::launcher {

bool SlowAnswer::Begin(Work work, std::chrono::milliseconds limit, Done done) {
  Close();
  Pipe pipe;
  if (works_->exchange(true)) return false;
  const bool opened = pipe.Open() && ::fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK) == 0;
  if (!opened || !loop_->Watch(pipe.read_end.get(), EPOLLIN, [this](uint32_t) { Read(); })) {
    works_->store(false);
    return false;
  }
  out_ = std::move(pipe.read_end);
  const auto writer = std::make_shared<runtime::FileDescriptor>(std::move(pipe.write_end));
  call_.emplace([work = std::move(work), writer, works = works_] {
    work(writer->get());
    works->store(false);  // before the loop sees the end
    writer->Close();
    return absl::OkStatus();
  });
  if (!call_->Await(runtime::Deadline::After(std::chrono::seconds(0))).value_or(absl::OkStatus()).ok()) {
    works_->store(false);
    Close();
    return false;
  }
  done_ = std::move(done);
  timer_ = loop_->After(limit, [this] { Finish(); });
  return true;
}

void SlowAnswer::Read() {
  std::array<char, 16384> part{};
  const ssize_t got = ::read(out_.get(), part.data(), part.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0) bytes_.append(part.data(), static_cast<size_t>(got));
  if (got <= 0 || bytes_.size() >= max_bytes_) Finish();
}

void SlowAnswer::Finish() {
  const Done done = std::exchange(done_, nullptr);
  const std::string bytes = std::exchange(bytes_, "");
  Close();
  done(bytes);
}

void SlowAnswer::Close() {
  loop_->Cancel(std::exchange(timer_, 0));
  if (out_.valid()) loop_->Unwatch(out_.get());
  out_.Close();
  bytes_.clear();
}

}  // namespace cohort::launcher
