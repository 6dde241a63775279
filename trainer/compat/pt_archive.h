// The zip archive that a .pt file is: records by name, stored and not compressed, as torch.save writes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace cohort::trainer {

// Believes nothing: whatever bytes the file has, what is wrong with it is an error, and memory is taken for no more
// than what the file really holds. Throws c10::Error.
class PtArchive {
 public:
  explicit PtArchive(const std::string& path);
  ~PtArchive();
  PtArchive(const PtArchive&) = delete;
  PtArchive& operator=(const PtArchive&) = delete;

  // By the name within the archive's one folder.
  bool Has(const std::string& name) const { return records_.count(name) > 0; }
  // All of a record, whose checksum is right. Throws c10::Error where there is none, and where what was read is more
  // than the file: records that lie in each other would take memory without end.
  std::string Read(const std::string& name);

 private:
  struct Record {
    uint64_t offset = 0;  // of its header
    uint64_t bytes = 0;
    uint32_t checksum = 0;
    uint16_t method = 0;
  };

  std::string At(uint64_t offset, uint64_t bytes) const;
  void ReadDirectory(const std::string& directory, uint64_t count);

  int fd_ = -1;
  uint64_t size_ = 0;
  uint64_t read_ = 0;  // of the records
  std::map<std::string, Record> records_;
};

}  // namespace cohort::trainer
