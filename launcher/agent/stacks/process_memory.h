// Reads another process' memory.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// Reads the memory of a process that goes on meanwhile: what is read may be out of date or torn. Needs the right to
// trace the process, which its ancestors of the same user have (kernel.yama.ptrace_scope up to 1).
class ProcessMemory {
 public:
  explicit ProcessMemory(pid_t pid);
  bool valid() const { return file_.valid(); }
  // False where the process has not so much there.
  bool Read(uint64_t address, void* out, size_t bytes) const;
  template <typename T>
  std::optional<T> Get(uint64_t address) const {
    T value;
    if (!Read(address, &value, sizeof value)) return std::nullopt;
    return value;
  }

 private:
  runtime::FileDescriptor file_;
};

}  // namespace cohort::launcher
