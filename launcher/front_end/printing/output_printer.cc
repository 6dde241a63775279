#include "cohort/launcher/front_end/printing/output_printer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {

using runtime::CondVar;
using runtime::Deadline;
using runtime::Mutex;
using runtime::MutexLock;

struct OutputPrinter::Shared {
  struct Chunk {
    int fd;
    std::string text;
  };
  Mutex mutex;
  CondVar changed;
  Callbacks callbacks COHORT_GUARDED_BY(mutex);
  std::deque<Chunk> queue COHORT_GUARDED_BY(mutex);
  size_t queued_bytes COHORT_GUARDED_BY(mutex) = 0;
  bool was_full COHORT_GUARDED_BY(mutex) = false;
  bool writing COHORT_GUARDED_BY(mutex) = false;
  bool stop COHORT_GUARDED_BY(mutex) = false;
  int errors[3] COHORT_GUARDED_BY(mutex) = {};  // a stream's last, by descriptor
};

namespace {

// 0, or the errno for which nothing more can be written.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      ::usleep(1000);  // someone made the terminal non-blocking
    } else if (n == 0 || errno != EINTR) {
      return n == 0 ? EIO : errno;
    }
  }
  return 0;
}

}  // namespace

std::string DescribeClosedStream(int fd, int error) {
  const std::string stream = fd == STDOUT_FILENO ? "the standard output" : "the standard error";
  return error == EPIPE ? "nobody reads " + stream : "can't write " + stream + ": " + std::strerror(error);
}

OutputPrinter::OutputPrinter(Callbacks callbacks) : shared_(std::make_shared<Shared>()) {
  {
    MutexLock lock(shared_->mutex);
    shared_->callbacks = std::move(callbacks);
  }
  std::thread([shared = shared_] { Run(shared); }).detach();
}

OutputPrinter::~OutputPrinter() {
  MutexLock lock(shared_->mutex);
  shared_->stop = true;
  shared_->callbacks = {};
  shared_->changed.NotifyAll();
}

void OutputPrinter::Print(int fd, std::string_view text) {
  MutexLock lock(shared_->mutex);
  if (text.empty() || shared_->errors[fd] != 0) return;
  if (shared_->queue.empty() || shared_->queue.back().fd != fd || shared_->queue.back().text.size() > (256u << 10)) {
    shared_->queue.push_back({fd, std::string(text)});
  } else {
    shared_->queue.back().text.append(text);
  }
  shared_->queued_bytes += text.size();
  shared_->changed.NotifyAll();
}

bool OutputPrinter::full() {
  MutexLock lock(shared_->mutex);
  if (shared_->queued_bytes >= kHighWater) shared_->was_full = true;
  return shared_->was_full;
}

int OutputPrinter::error(int fd) {
  MutexLock lock(shared_->mutex);
  return shared_->errors[fd];
}

bool OutputPrinter::Finish(std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::After(timeout);
  MutexLock lock(shared_->mutex);
  while ((!shared_->queue.empty() || shared_->writing) && !deadline.passed()) {
    shared_->changed.Wait(shared_->mutex, deadline);
  }
  shared_->callbacks = {};
  return shared_->queue.empty() && !shared_->writing;
}

void OutputPrinter::Run(const std::shared_ptr<Shared>& shared) {
  for (;;) {
    Shared::Chunk chunk;
    {
      MutexLock lock(shared->mutex);
      shared->writing = false;
      if (shared->was_full && shared->queued_bytes < kHighWater / 2) {
        shared->was_full = false;
        if (shared->callbacks.on_drained) shared->callbacks.on_drained();
      }
      shared->changed.NotifyAll();
      while (shared->queue.empty() && !shared->stop) shared->changed.Wait(shared->mutex);
      if (shared->stop) return;
      chunk = std::move(shared->queue.front());
      shared->queue.pop_front();
      shared->writing = true;
    }
    const int error = WriteAll(chunk.fd, chunk.text);
    MutexLock lock(shared->mutex);
    shared->queued_bytes -= chunk.text.size();
    if (error == 0 || std::exchange(shared->errors[chunk.fd], error) != 0) continue;
    if (shared->callbacks.on_closed) shared->callbacks.on_closed(chunk.fd, error);
  }
}

}  // namespace cohort::launcher
