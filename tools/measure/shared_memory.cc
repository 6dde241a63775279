#include "tools/measure/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cohort/runtime/base/errno_status.h"

namespace cohort::measure {

using runtime::ErrnoStatus;
using runtime::ErrnoText;
using runtime::FileDescriptor;

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Map(FileDescriptor fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "cannot map the benchmark's shared memory");
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(fd), data, bytes));
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(size_t bytes) {
  FileDescriptor fd(memfd_create("cohort-measure", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, "cannot make the benchmark's shared memory");
  }
  return Map(std::move(fd), bytes);
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Open(const std::string& path, size_t bytes) {
  FileDescriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return absl::UnavailableError("cannot open " + path + ": " + ErrnoText(errno));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || static_cast<size_t>(info.st_size) != bytes) {
    return absl::InvalidArgumentError(path + " is not the benchmark's shared memory");
  }
  return Map(std::move(fd), bytes);
}

SharedMemory::~SharedMemory() { munmap(data_, bytes_); }

std::string SharedMemory::Path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_.get());
}

}  // namespace cohort::measure
