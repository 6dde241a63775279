#include "cohort/launcher/trace/trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::CondVar;
using runtime::Mutex;
using runtime::MutexLock;

absl::Status Cannot(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError("no trace can be written to " + path + ": " + why);
}

// A piece for which the disk has no room is taken back. Returns the error, or 0.
int WriteWhole(int fd, const std::string& piece, off_t at) {
  size_t done = 0;
  while (done < piece.size()) {
    const ssize_t n = ::pwrite(fd, piece.data() + done, piece.size() - done, at + static_cast<off_t>(done));
    if (n > 0) done += static_cast<size_t>(n);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    const int error = n == 0 ? ENOSPC : errno;
    return ::ftruncate(fd, at) == 0 ? error : errno;
  }
  return 0;
}

absl::StatusOr<runtime::FileDescriptor> OpenLocked(const std::string& path) {
  // Without O_TRUNC, so that the file of another trace stays as it is. A pipe would wait for its reader.
  runtime::FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644));
  if (!fd.valid()) return Cannot(path, std::strerror(errno));
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return Cannot(path, "it is no plain file");
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return WithRemedy(Remedy::kTraceInUse, Cannot(path, "another trace is being written there; give another file"));
  }
  return fd;
}

// Whether a file is empty, or begins as a trace does: with a packet that holds compressed ones, field 50.
bool MayBeOverwritten(int fd) {
  unsigned char head[16];
  const ssize_t n = ::pread(fd, head, sizeof head, 0);
  if (n <= 0) return n == 0;
  ssize_t at = 1;
  while (at < n && (head[at] & 0x80) != 0) ++at;  // the packet's length
  return head[0] == 0x0A && at + 2 < n && head[at + 1] == 0x92 && head[at + 2] == 0x03;
}

// The reason why a part may not take the place of the file at `path`, in words behind its name; empty: it may.
std::string WhyNotReplaced(const std::string& path) {
  const runtime::FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (fd.valid()) return MayBeOverwritten(fd.get()) ? "" : "holds something else than a trace";
  return errno == ENOENT ? "" : std::string("can't be read: ") + std::strerror(errno);
}

// The end of a trace before its job's.
absl::Status EndOf(const std::string& path, const std::string& why) {
  return absl::ResourceExhaustedError("the trace " + path + " ends here: " + why +
                                      "; what it holds can be read, and the job goes on");
}
absl::Status EndOf(const std::string& path, int error) {
  return error == 0 ? absl::OkStatus() : EndOf(path, std::strerror(error));
}

std::string PartBeforeOf(const std::string& path) { return path + ".before"; }

// Adds the `bytes` of a file to the end of the one at `path`, or nothing. Returns the error, or 0.
int AppendFile(const std::string& path, int from, off_t bytes) {
  const runtime::FileDescriptor to(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const off_t end = to.valid() ? ::lseek(to.get(), 0, SEEK_END) : -1;
  if (end < 0) return errno;
  for (off_t copied = 0; copied < bytes;) {
    const ssize_t n = ::sendfile(to.get(), from, &copied, static_cast<size_t>(bytes - copied));
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    const int error = n == 0 ? EIO : errno;
    return ::ftruncate(to.get(), end) == 0 ? error : errno;
  }
  return 0;
}

}  // namespace

struct TraceFile::Shared {
  std::string path;
  Parts parts = Parts::kOne;
  // The thread's:
  runtime::FileDescriptor fd;
  off_t written = 0;
  bool has_part_before = false;

  Mutex mutex;
  CondVar changed;
  std::deque<Piece> pieces COHORT_GUARDED_BY(mutex);
  size_t waiting COHORT_GUARDED_BY(mutex) = 0;  // bytes, and one more for each piece; of the one being written too
  State state COHORT_GUARDED_BY(mutex) = State::kOpening;
  absl::Status problem COHORT_GUARDED_BY(mutex);
};

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Begin(const std::string& path, Parts parts) {
  auto shared = std::make_shared<Shared>();
  shared->path = path;
  shared->parts = parts;
  try {
    std::thread([shared] { Run(shared); }).detach();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError("no trace can be written to " + path +
                                        ": no thread for it: " + error.code().message());
  }
  return std::unique_ptr<TraceFile>(new TraceFile(path, std::move(shared)));
}

absl::Status TraceFile::AwaitOpen(runtime::Deadline deadline) {
  MutexLock lock(shared_->mutex);
  while (shared_->state == State::kOpening && shared_->problem.ok()) {
    if (shared_->changed.Wait(shared_->mutex, deadline)) continue;
    return absl::DeadlineExceededError("no trace can be written to " + path_ + ": its file system does not answer");
  }
  return shared_->problem;
}

TraceFile::~TraceFile() {
  MutexLock lock(shared_->mutex);
  shared_->state = State::kClosed;
  shared_->pieces.clear();
  shared_->changed.NotifyAll();
}

bool TraceFile::Put(Piece piece) {
  MutexLock lock(shared_->mutex);
  const size_t bytes = piece.bytes.size() + 1;
  const bool is_end = piece.kind == Kind::kJoinParts;  // it comes once, and the file is not whole without it
  if (!shared_->problem.ok() || (!is_end && shared_->waiting + bytes > kMostWaiting)) return false;
  shared_->waiting += bytes;
  shared_->pieces.push_back(std::move(piece));
  shared_->changed.NotifyAll();
  return true;
}

bool TraceFile::Write(std::string piece) { return Put({.kind = Kind::kWrite, .bytes = std::move(piece)}); }

bool TraceFile::BeginPart() { return Put({.kind = Kind::kBeginPart, .bytes = ""}); }

absl::Status TraceFile::problem() const {
  MutexLock lock(shared_->mutex);
  return shared_->problem;
}

absl::Status TraceFile::Finish(runtime::Deadline deadline) {
  if (!std::exchange(finished_, true)) (void)Put({.kind = Kind::kJoinParts, .bytes = ""});
  MutexLock lock(shared_->mutex);
  while (shared_->waiting > 0 && shared_->problem.ok()) {
    if (shared_->changed.Wait(shared_->mutex, deadline)) continue;
    return absl::DeadlineExceededError("the end of the trace " + path_ + " is missing: its disk does not take it");
  }
  return shared_->problem;
}

// On the thread.
absl::Status TraceFile::Perform(Shared* shared, const Piece& piece) {
  const std::string& path = shared->path;
  const std::string before = PartBeforeOf(path);
  if (piece.kind == Kind::kWrite) {
    const int error = WriteWhole(shared->fd.get(), piece.bytes, shared->written);
    shared->written += static_cast<off_t>(piece.bytes.size());
    return EndOf(path, error);
  }
  if (piece.kind == Kind::kBeginPart) {
    if (!shared->has_part_before) {
      const std::string why_not = WhyNotReplaced(before);
      if (!why_not.empty()) return EndOf(path, before + " " + why_not);
    }
    if (::rename(path.c_str(), before.c_str()) != 0) return EndOf(path, errno);
    absl::StatusOr<runtime::FileDescriptor> next = OpenLocked(path);
    if (!next.ok() || ::ftruncate(next->get(), 0) != 0) return EndOf(path, errno == 0 ? EIO : errno);
    shared->fd = *std::move(next);
    shared->written = 0;
    shared->has_part_before = true;
    return absl::OkStatus();
  }
  if (!shared->has_part_before) return absl::OkStatus();
  const int error = AppendFile(before, shared->fd.get(), shared->written);
  if (error != 0) return EndOf(path, error);
  return EndOf(path, ::rename(before.c_str(), path.c_str()) == 0 ? 0 : errno);
}

bool TraceFile::OpenFile(Shared* shared) {
  const std::string before = PartBeforeOf(shared->path);
  const std::string why_not = shared->parts == Parts::kOne ? "" : WhyNotReplaced(before);
  absl::StatusOr<runtime::FileDescriptor> fd =
      WithRemedy(Remedy::kTraceOtherFile, Cannot(shared->path, "a part of it goes to " + before + ", which " + why_not +
                                                                   "; give another file, or remove that one"));
  if (why_not.empty()) fd = OpenLocked(shared->path);
  {
    MutexLock lock(shared->mutex);
    if (shared->state == State::kClosed) return false;  // it was given up: its contents stay
  }
  if (fd.ok() && !MayBeOverwritten(fd->get())) {
    fd = WithRemedy(Remedy::kTraceOtherFile,
                    Cannot(shared->path, "it holds something else than a trace; give another file, or remove it"));
  }
  if (fd.ok() && ::ftruncate(fd->get(), 0) != 0) fd = Cannot(shared->path, std::strerror(errno));
  MutexLock lock(shared->mutex);
  shared->changed.NotifyAll();
  shared->problem = fd.status();
  if (!fd.ok() || shared->state == State::kClosed) return false;
  shared->fd = *std::move(fd);
  shared->state = State::kOpen;
  return true;
}

void TraceFile::Run(const std::shared_ptr<Shared>& shared) {
  if (!OpenFile(shared.get())) return;
  for (;;) {
    Piece piece;
    {
      MutexLock lock(shared->mutex);
      while (shared->state == State::kOpen && shared->pieces.empty()) shared->changed.Wait(shared->mutex);
      if (shared->state == State::kClosed) return;
      piece = std::move(shared->pieces.front());
      shared->pieces.pop_front();
    }
    absl::Status performed = Perform(shared.get(), piece);
    MutexLock lock(shared->mutex);
    shared->waiting -= piece.bytes.size() + 1;
    shared->changed.NotifyAll();
    if (performed.ok()) continue;
    shared->problem = std::move(performed);
    shared->pieces.clear();
    return;
  }
}

}  // namespace cohort::launcher
