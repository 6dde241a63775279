// Reads a `.pt` file without executing anything, and without libtorch.
#pragma once

#include <memory>
#include <string>

#include "cohort/trainer/compat/pt/contents.h"
#include "cohort/trainer/compat/pt/file_bytes.h"
#include "cohort/trainer/compat/pt/source.h"

namespace cohort::trainer::pt {

class Reader {
 public:
  // Throws Error, whose text completes "can't read tensors from FILE: ...".
  explicit Reader(const std::string& path);

  const Contents& contents() const { return contents_; }
  // The elements of the storage of a strided tensor: in this machine's byte order, and the tensor's own where the file
  // has their conjugates or negatives.
  std::string Elements(const StoredTensor& tensor);
  // Tensors with equal names here are views of the same elements.
  std::string NameOfElements(const StoredTensor& tensor) const;

 private:
  FileBytes file_;
  std::unique_ptr<Source> source_;
  Contents contents_;
};

}  // namespace cohort::trainer::pt
