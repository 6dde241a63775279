// Memory that a benchmark's processes share: a memfd, nameless, reached through its maker's /proc entry, so that it is
// gone with the last process that maps it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::measure {

class SharedMemory {
 public:
  // Zeroed memory; pages are allocated when they are first touched.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(size_t bytes);
  // Another process' memory by its Path(). kUnavailable where it can't be opened (another host, container or user) and
  // kInvalidArgument where it has another size.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(const std::string& path, size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // "/proc/4711/fd/5": valid for as long as the maker lives.
  std::string Path() const;

 private:
  SharedMemory(runtime::FileDescriptor fd, void* data, size_t bytes)
      : fd_(static_cast<runtime::FileDescriptor&&>(fd)), data_(data), bytes_(bytes) {}
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Map(runtime::FileDescriptor fd, size_t bytes);

  runtime::FileDescriptor fd_;
  void* data_;
  size_t bytes_;
};

}  // namespace cohort::measure
