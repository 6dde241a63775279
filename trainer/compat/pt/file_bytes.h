// A file of which nothing is believed: bytes of it that are there, or an error.
#pragma once

#include <cstdint>
#include <string>

namespace cohort::trainer::pt {

class FileBytes {
 public:
  // Throws Error where there is no such file, or no ordinary one.
  explicit FileBytes(const std::string& path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  uint64_t size() const { return size_; }
  // Throws Error where the file ends before. No number becomes an amount of memory that the file does not have.
  std::string At(uint64_t offset, uint64_t bytes) const;
  // At most `bytes`, from the beginning.
  std::string Head(uint64_t bytes) const;

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace cohort::trainer::pt
