// Reads tapes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/tape/tape_contents.h"

namespace cohort::runtime {

// Adds what the bytes of one file hold. The first file gives the head. Files come in their order, each as a whole.
// `file` names it in errors, and its bytes outlive the contents. kDataLoss: it is damaged; the text says where.
// kFailedPrecondition: another version wrote it, or it belongs to another tape. Pure.
absl::Status AddTapeFile(std::span<const std::byte> bytes, const std::string& file, TapeContents* contents);

// A tape whose files are in memory. While it lives, no job writes another tape in its place.
class OpenTape {
 public:
  // Reads all of the tape at `path`, with its parts. Blocks on the disk. Errors as AddTapeFile, kNotFound and
  // kPermissionDenied, and kFailedPrecondition while a process writes it; each names the path.
  static absl::StatusOr<std::unique_ptr<OpenTape>> Open(const std::string& path);
  ~OpenTape();
  OpenTape(const OpenTape&) = delete;
  OpenTape& operator=(const OpenTape&) = delete;

  const std::string& path() const { return path_; }
  const TapeContents& contents() const { return contents_; }

 private:
  explicit OpenTape(std::string path);
  absl::Status Map(const std::string& file);

  const std::string path_;
  std::vector<FileDescriptor> files_;
  std::vector<std::span<const std::byte>> maps_;
  TapeContents contents_;
};

}  // namespace cohort::runtime
