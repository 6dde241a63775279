// The zip archive that torch.save writes since PyTorch 1.6: records by name, stored and not compressed.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cohort/trainer/compat/pt/file_bytes.h"

namespace cohort::trainer::pt {

// Believes nothing: whatever bytes the file has, what is wrong with it is an error, and memory is taken for no more
// than what the file really holds. Throws Error.
class Archive {
 public:
  // `file` outlives this.
  explicit Archive(const FileBytes& file);

  // By the name within the archive's one folder.
  bool Has(const std::string& name) const { return records_.count(name) > 0; }
  // Whether a record's name begins so.
  bool HasFolder(const std::string& folder) const;
  // The name of the first record, for errors.
  std::string first() const { return records_.empty() ? "nothing" : records_.begin()->first; }
  // All of a record, whose checksum is right. Throws Error where there is none, and where what was read is more than
  // the file: records that lie in each other would take memory without end.
  std::string Read(const std::string& name);

 private:
  struct Record {
    uint64_t offset = 0;  // of its header
    uint64_t bytes = 0;
    uint32_t checksum = 0;
    uint16_t method = 0;
  };

  void ReadDirectory(const std::string& directory, uint64_t count);

  const FileBytes& file_;
  uint64_t read_ = 0;  // of the records
  std::map<std::string, Record> records_;
};

}  // namespace cohort::trainer::pt
