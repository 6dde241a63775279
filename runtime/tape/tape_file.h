// The file that a tape is written to. Entries are written whole or not at all, by one call of the system each: so the
// last one alone may be cut, where the process was killed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::runtime {

struct MemoryPiece {
  const void* data = nullptr;
  size_t bytes = 0;
};

class TapeFile {
 public:
  // Makes the file, or empties it; readable by its owner alone. Blocks. kPermissionDenied, kResourceExhausted and
  // others name the path and the cause; kFailedPrecondition: another process writes or replays a tape there.
  static absl::StatusOr<std::unique_ptr<TapeFile>> Create(const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return written_; }
  // Adds all pieces, or none of them: a full disk, and the limit on files' sizes, leave the file as it was. Blocks
  // while the disk takes it.
  absl::Status Append(std::span<const MemoryPiece> pieces);

 private:
  TapeFile(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  const std::string path_;
  FileDescriptor fd_;
  uint64_t written_ = 0;
};

}  // namespace cohort::runtime
