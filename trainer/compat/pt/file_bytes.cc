#include "cohort/trainer/compat/pt/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cohort/trainer/compat/pt/error.h"

namespace cohort::trainer::pt {

FileBytes::FileBytes(const std::string& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  if (fd_ < 0) Refuse(std::strerror(errno));
  struct stat facts{};
  const bool known = ::fstat(fd_, &facts) == 0;
  if (known && S_ISREG(facts.st_mode)) {
    size_ = static_cast<uint64_t>(facts.st_size);
    return;
  }
  ::close(fd_);  // no destructor follows
  if (known && S_ISDIR(facts.st_mode)) {
    Refuse("it is a directory, perhaps of torch.distributed.checkpoint, which ",
           "torch.distributed.checkpoint.format_utils.dcp_to_torch_save makes a file of");
  }
  Refuse("it is no ordinary file");
}

FileBytes::~FileBytes() { ::close(fd_); }

std::string FileBytes::At(uint64_t offset, uint64_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) Refuse("it ends before byte ", offset, " + ", bytes);
  std::string data(bytes, '\0');
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd_, data.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) Refuse("it can't be read: ", got < 0 ? std::strerror(errno) : "it has become shorter");
    done += static_cast<uint64_t>(got);
  }
  return data;
}

std::string FileBytes::Head(uint64_t bytes) const { return At(0, std::min(bytes, size_)); }

}  // namespace cohort::trainer::pt
