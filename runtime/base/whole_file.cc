#include "cohort/runtime/base/whole_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as many as the kernel follows

absl::Status Cannot(const std::string& path, int error = errno) {
  const absl::Status status = ErrnoStatus(error, "cannot write " + path);
  if (error != EFBIG) return status;
  return absl::Status(status.code(), std::string(status.message()) + " (`ulimit -f` shows the limit)");
}

std::string FolderOf(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

// The file that a name stands for: a path without links, or a descriptor of this process.
struct Destination {
  std::string path;
  int descriptor = -1;

  // Something other than a regular file of its own.
  bool IsSpecial() const {
    struct stat info{};
    return descriptor >= 0 || (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode));
  }
  bool IsNamedPipe() const {
    struct stat info{};
    return descriptor < 0 && stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode);
  }
  // Opening a pipe for writing waits for its reader, unless `flags` say otherwise.
  FileDescriptor Open(int flags) const {
    if (descriptor < 0) return FileDescriptor(open(path.c_str(), O_WRONLY | O_CLOEXEC | flags));
    const int mode = fcntl(descriptor, F_GETFL);
    if (mode >= 0 && (mode & O_ACCMODE) == O_RDONLY) errno = EBADF;  // as write() would say
    return FileDescriptor(mode < 0 || (mode & O_ACCMODE) == O_RDONLY ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  }
};

// Links stay: what they point to is written, also where it is not there yet. To the kernel /dev/stdout is a link to the
// file behind that descriptor, which a new open would write from its beginning. A loop of links is an error here:
// the kernel would report it only when that name is opened, and it is another one that is opened and renamed.
absl::StatusOr<Destination> Follow(const std::string& path) {
  std::error_code none;
  const fs::path descriptors = fs::canonical("/proc/self/fd", none);
  fs::path at = path;
  for (int links = 0;; ++links) {
    std::error_code error;
    const fs::path folder = fs::canonical(at.has_parent_path() ? at.parent_path() : ".", error);
    if (error) break;
    const std::string name = at.filename().string();
    int descriptor = -1;
    if (folder == descriptors &&
        std::from_chars(name.data(), name.data() + name.size(), descriptor).ec == std::errc()) {
      return Destination{path, descriptor};
    }
    const fs::path target = fs::read_symlink(at, error);
    if (error) break;
    if (links == kMostLinks) return Cannot(path, ELOOP);
    at = folder / target;
  }
  return Destination{at.string()};
}

// Opens what is not a regular file. A named pipe opens when it has a reader, and only another try shows that.
absl::StatusOr<FileDescriptor> OpenSpecial(const Destination& destination, const std::string& path,
                                           std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPause(20);
  const bool pipe = destination.IsNamedPipe();
  const Deadline deadline = Deadline::After(patience);
  for (;;) {
    FileDescriptor out = destination.Open(pipe ? O_NONBLOCK : 0);
    if (out.valid()) return out;
    if (!pipe || errno != ENXIO) return Cannot(path);
    if (deadline.passed()) {
      return absl::DeadlineExceededError("cannot write " + path + ": nobody has opened this pipe for reading for " +
                                         std::to_string(patience.count()) + " ms");
    }
    std::this_thread::sleep_for(kPause);
  }
}

// Until a descriptor that another program made non-blocking takes more, or its reader is gone: the next write says
// which.
absl::Status AwaitRoom(int fd, std::chrono::milliseconds patience, const std::string& path) {
  const Deadline deadline = Deadline::After(patience);
  for (;;) {
    // A whole millisecond more: what is left of one would be a busy wait.
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count() + 1;
    pollfd room{fd, POLLOUT, 0};
    const int ready = poll(&room, 1, static_cast<int>(std::min<int64_t>(left, INT_MAX)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Cannot(path);
    if (deadline.passed()) {
      return absl::DeadlineExceededError("cannot write " + path + ": its reader has taken nothing for " +
                                         std::to_string(patience.count()) + " ms");
    }
  }
}

absl::Status WriteAll(int fd, const TextSource& source, const std::string& path, std::chrono::milliseconds patience) {
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(std::string_view text, source());
    if (text.empty()) return absl::OkStatus();
    while (!text.empty()) {
      const ssize_t put = write(fd, text.data(), text.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        COHORT_RETURN_IF_ERROR(AwaitRoom(fd, patience, path));
        continue;
      }
      if (put < 0) return Cannot(path);
      text.remove_prefix(static_cast<size_t>(put));
    }
  }
}

// Writes all of it, syncs it where it is to be durable, and closes the file. Some file systems (NFS, quotas) tell only
// then that the text has no room.
absl::Status WriteAndClose(FileDescriptor out, const TextSource& source, const std::string& path,
                           std::chrono::milliseconds patience, bool durable = false) {
  COHORT_RETURN_IF_ERROR(WriteAll(out.get(), source, path, patience));
  if (durable && fsync(out.get()) != 0) return Cannot(path);
  // Interrupted, it is closed all the same.
  return close(out.Release()) == 0 || errno == EINTR ? absl::OkStatus() : Cannot(path);
}

// The name of a new file beside `target`: as much of its own as the file system has room for, and the suffix.
std::string BesideIt(const std::string& target, const std::string& suffix) {
  const fs::path path = target;
  std::string name = path.filename().string();
  const long most = pathconf(FolderOf(target).c_str(), _PC_NAME_MAX);
  const size_t room = most > 0 ? static_cast<size_t>(most) : NAME_MAX;
  // A name that is too long itself is left for the system to refuse.
  if (name.size() > room || name.size() + suffix.size() <= room) return target + suffix;
  size_t kept = room - suffix.size();
  while (kept > 0 && (name[kept] & 0xC0) == 0x80) --kept;  // whole characters of UTF-8: some file systems insist
  name.resize(kept);
  return (path.parent_path() / (name + suffix)).string();
}

// A new file beside `target`, with the access that the old one has, or that one made by open() would have. Its name is
// new: a program that was killed may have left one.
FileDescriptor MakePartial(const std::string& target, mode_t mode, std::string* name) {
  std::random_device random;
  FileDescriptor partial;
  do {
    *name = BesideIt(target, ".part-" + std::to_string(random()));
    partial = FileDescriptor(open(name->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  } while (!partial.valid() && errno == EEXIST);
  struct stat old{};
  if (partial.valid() && stat(target.c_str(), &old) == 0) (void)fchmod(partial.get(), old.st_mode & 0777);
  return partial;
}

// In a folder like /tmp only who owns the file or the folder may take its name away.
bool MayReplace(const std::string& target) {
  struct stat old{}, folder{};
  if (lstat(target.c_str(), &old) != 0) return true;
  if (stat(FolderOf(target).c_str(), &folder) != 0) return true;
  const uid_t self = geteuid();
  return (folder.st_mode & S_ISVTX) == 0 || self == 0 || self == old.st_uid || self == folder.st_uid;
}

absl::Status Exists(const std::string& path) {
  return absl::AlreadyExistsError("cannot write " + path + ": it is there already; name a new file");
}

// Gives the partial file its name.
absl::Status Publish(const std::string& partial, const std::string& target, bool replace, const std::string& path) {
  if (replace) return rename(partial.c_str(), target.c_str()) == 0 ? absl::OkStatus() : Cannot(path);
  // Unlike rename(), link() takes nobody's name away.
  if (link(partial.c_str(), target.c_str()) == 0) {
    unlink(partial.c_str());
    return absl::OkStatus();
  }
  if (errno == EEXIST) return Exists(path);
  // A file system without links: nearly as good.
  struct stat old{};
  if (lstat(target.c_str(), &old) == 0) return Exists(path);
  return rename(partial.c_str(), target.c_str()) == 0 ? absl::OkStatus() : Cannot(path);
}

}  // namespace

absl::Status WriteWholeFile(const std::string& path, const TextSource& source, const WholeFileOptions& options) {
  COHORT_ASSIGN_OR_RETURN(const Destination destination, Follow(path));
  if (destination.IsSpecial()) {
    COHORT_ASSIGN_OR_RETURN(FileDescriptor out, OpenSpecial(destination, path, options.patience));
    return WriteAndClose(std::move(out), source, path, options.patience);
  }
  struct stat old{};
  if (!options.replace && lstat(destination.path.c_str(), &old) == 0) return Exists(path);
  std::string partial;
  FileDescriptor out = MakePartial(destination.path, options.mode, &partial);
  if (!out.valid()) return Cannot(path);
  absl::Status status = WriteAndClose(std::move(out), source, path, options.patience, options.durable);
  if (status.ok()) status = Publish(partial, destination.path, options.replace, path);
  if (!status.ok()) {
    unlink(partial.c_str());
    return status;
  }
  return options.durable ? SyncFolderOf(destination.path) : absl::OkStatus();
}

absl::Status WriteWholeFile(const std::string& path, std::string_view text, const WholeFileOptions& options) {
  return WriteWholeFile(
      path, [&text] { return absl::StatusOr<std::string_view>(std::exchange(text, std::string_view())); }, options);
}

absl::Status WriteNewFile(const std::string& path, const TextSource& source) {
  const WholeFileOptions options;
  FileDescriptor out(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, options.mode));
  if (!out.valid()) return errno == EEXIST ? Exists(path) : Cannot(path);
  absl::Status status = WriteAndClose(std::move(out), source, path, options.patience, /*durable=*/true);
  if (!status.ok()) unlink(path.c_str());
  return status;
}

absl::Status SyncFolder(const std::string& folder) {
  const FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return Cannot(folder);
  // Some file systems keep no folder back, and say that there is nothing to sync.
  if (fsync(fd.get()) == 0 || errno == EINVAL || errno == EOPNOTSUPP) return absl::OkStatus();
  return Cannot(folder);
}

absl::Status SyncFolderOf(const std::string& path) { return SyncFolder(FolderOf(path)); }

absl::Status CheckWritable(const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const Destination destination, Follow(path));
  if (destination.IsSpecial()) {
    // To its reader a pipe that was opened and closed again is at its end.
    if (destination.IsNamedPipe()) return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : Cannot(path);
    const FileDescriptor out = destination.Open(O_NONBLOCK);
    return out.valid() || errno == ENXIO ? absl::OkStatus() : Cannot(path);
  }
  if (!MayReplace(destination.path)) return Cannot(path, EPERM);
  std::string partial;
  const FileDescriptor out = MakePartial(destination.path, 0666, &partial);
  if (!out.valid()) return Cannot(path);
  unlink(partial.c_str());
  return absl::OkStatus();
}

}  // namespace cohort::runtime
