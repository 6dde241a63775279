// Whatever bytes stand for a `.pt` file: no crash, no memory that the file does not have, and tensors that lie within
// their storages.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cohort/trainer/compat/pt/error.h"
#include "cohort/trainer/compat/pt/reader.h"
#include "tests/support/fuzz_input.h"

namespace {

using cohort::FuzzCheck;
using cohort::trainer::pt::ElementBytes;
using cohort::trainer::pt::Reader;
using cohort::trainer::pt::StoredTensor;

void Check(Reader& reader, const StoredTensor& tensor, size_t file_bytes) {
  for (const StoredTensor& part : tensor.parts) Check(reader, part, file_bytes);
  if (tensor.layout != StoredTensor::Layout::kStrided) return;
  const std::string elements = reader.Elements(tensor);
  FuzzCheck(elements.size() <= file_bytes);
  int64_t last = tensor.offset;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    FuzzCheck(tensor.sizes[i] >= 0 && tensor.strides[i] >= 0);
    if (tensor.sizes[i] == 0) return;
    last += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  FuzzCheck(last >= 0 && (last + 1) * ElementBytes(tensor.type) <= static_cast<int64_t>(elements.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int memory = ::memfd_create("pt", MFD_CLOEXEC);
  FuzzCheck(memory >= 0 && ::ftruncate(memory, 0) == 0);
  FuzzCheck(::pwrite(memory, data, size, 0) == static_cast<ssize_t>(size));
  try {
    Reader reader("/proc/self/fd/" + std::to_string(memory));
    for (const auto& [name, tensor] : reader.contents().tensors) Check(reader, tensor, size);
  } catch (const cohort::trainer::pt::Error&) {  // as it should be
  }
  return 0;
}
