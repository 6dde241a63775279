#include "tools/program/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "runtime/base/errno_status.h"
#include "runtime/base/file_descriptor.h"

namespace cohort::tools {
namespace {

using runtime::ErrnoStatus;
using runtime::FileDescriptor;

absl::Status Cannot(const std::string& path) { return ErrnoStatus(errno, "cannot write " + path); }

// Something other than a regular file is there; a link counts as what it points to.
bool IsSpecial(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

// Where the file itself lies: a link stays, and its target is replaced.
std::string Target(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  std::string target = resolved != nullptr ? resolved : path;
  std::free(resolved);  // NOLINT(cppcoreguidelines-no-malloc): realpath's
  return target;
}

absl::Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t put = write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Cannot(path);
    text.remove_prefix(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

// A new file beside `target`, with the access that the old one has, or that one made by open() would have. Its name is
// new: a program that was killed may have left one.
FileDescriptor MakePartial(const std::string& target, std::string* name) {
  std::random_device random;
  FileDescriptor partial;
  do {
    *name = target + ".part-" + std::to_string(random());
    partial = FileDescriptor(open(name->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  } while (!partial.valid() && errno == EEXIST);
  struct stat old{};
  if (partial.valid() && stat(target.c_str(), &old) == 0) (void)fchmod(partial.get(), old.st_mode & 0777);
  return partial;
}

}  // namespace

absl::Status WriteWholeFile(const std::string& path, std::string_view text) {
  if (IsSpecial(path)) {
    const FileDescriptor out(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return out.valid() ? WriteAll(out.get(), text, path) : Cannot(path);
  }
  const std::string target = Target(path);
  std::string partial;
  absl::Status status;
  {
    const FileDescriptor out = MakePartial(target, &partial);
    if (!out.valid()) return Cannot(path);
    status = WriteAll(out.get(), text, path);
  }
  if (status.ok() && rename(partial.c_str(), target.c_str()) != 0) status = Cannot(path);
  if (!status.ok()) unlink(partial.c_str());
  return status;
}

absl::Status CheckWritable(const std::string& path) {
  if (IsSpecial(path)) {
    // Opening a pipe for writing would wait for its reader.
    const FileDescriptor out(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
    return out.valid() || errno == ENXIO ? absl::OkStatus() : Cannot(path);
  }
  std::string partial;
  const FileDescriptor out = MakePartial(Target(path), &partial);
  if (!out.valid()) return Cannot(path);
  unlink(partial.c_str());
  return absl::OkStatus();
}

}  // namespace cohort::tools
