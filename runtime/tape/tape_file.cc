#include "cohort/runtime/tape/tape_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "cohort/runtime/base/errno_status.h"

namespace cohort::runtime {
namespace {

// Writes all of `vectors`, whose members it changes. Returns the error, or 0.
int WriteVectors(int fd, std::span<iovec> vectors, off_t at) {
  while (!vectors.empty()) {
    if (vectors.front().iov_len == 0) {
      vectors = vectors.subspan(1);
      continue;
    }
    const ssize_t n = pwritev(fd, vectors.data(), static_cast<int>(vectors.size()), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n == 0 ? ENOSPC : errno;
    at += n;
    for (auto left = static_cast<size_t>(n); left > 0;) {
      iovec& first = vectors.front();
      const size_t taken = std::min(left, first.iov_len);
      first.iov_base = static_cast<std::byte*>(first.iov_base) + taken;
      first.iov_len -= taken;
      left -= taken;
      if (first.iov_len == 0) vectors = vectors.subspan(1);
    }
  }
  return 0;
}

// A program that does not ignore SIGXFSZ would die of a write beyond the limit.
bool BeyondSizeLimit(uint64_t end) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && end > limit.rlim_cur;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TapeFile>> TapeFile::Create(const std::string& path) {
  const std::string cannot = "no tape can be written to " + path;
  // Without O_TRUNC, so that the file of another process stays as it is. A pipe would wait for its reader.
  FileDescriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, cannot);
  struct stat info{};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(cannot + ": it is no plain file; give another folder");
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(cannot +
                                         ": another process writes or replays a tape there; give another folder");
  }
  // Also of a file that was there: a tape holds the program's data.
  if ((info.st_mode & 07777) != 0600 && fchmod(fd.get(), 0600) != 0) {
    return ErrnoStatus(errno, cannot + ", which others could read (give another folder)");
  }
  if (ftruncate(fd.get(), 0) != 0) return ErrnoStatus(errno, cannot);
  return std::unique_ptr<TapeFile>(new TapeFile(path, std::move(fd)));
}

absl::Status TapeFile::Append(std::span<const MemoryPiece> pieces) {
  constexpr size_t kMostVectors = 64;
  uint64_t bytes = 0;
  for (const MemoryPiece& piece : pieces) bytes += piece.bytes;
  int error = BeyondSizeLimit(written_ + bytes) ? EFBIG : 0;
  off_t at = static_cast<off_t>(written_);
  while (error == 0 && !pieces.empty()) {
    std::array<iovec, kMostVectors> vectors;
    const size_t count = std::min(pieces.size(), kMostVectors);
    off_t end = at;
    for (size_t i = 0; i < count; ++i) {
      vectors[i] = {const_cast<void*>(pieces[i].data), pieces[i].bytes};
      end += static_cast<off_t>(pieces[i].bytes);
    }
    error = WriteVectors(fd_.get(), {vectors.data(), count}, at);
    at = end;
    pieces = pieces.subspan(count);
  }
  if (error == 0) {
    written_ += bytes;
    return absl::OkStatus();
  }
  (void)!ftruncate(fd_.get(), static_cast<off_t>(written_));  // else a reader takes the rest for a cut entry
  return ErrnoStatus(error, "the tape " + path_ + " ends here");
}

}  // namespace cohort::runtime
