// The places of the values and the storages of a file: in a zip archive, or one behind the other.
#pragma once

#include <memory>
#include <string>

#include "cohort/trainer/compat/pt/file_bytes.h"
#include "cohort/trainer/compat/pt/pickle.h"
#include "cohort/trainer/compat/pt/stored_tensor.h"

namespace cohort::trainer::pt {

class Source {
 public:
  virtual ~Source() = default;
  // The value that the file's pickle makes; lives as long as this.
  virtual const Object& root() const = 0;
  // All bytes of a storage, as they lie in the file. Throws Error where there are fewer.
  virtual std::string Read(const Storage& storage) = 0;
  virtual bool big_endian() const { return false; }
};

// Recognises the format by its first bytes. `file` outlives the source. Throws Error, which names the format if it is
// another one.
std::unique_ptr<Source> OpenSource(const FileBytes& file);

}  // namespace cohort::trainer::pt
