#include "cohort/launcher/agent/stacks/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <limits>

namespace cohort::launcher {

ProcessMemory::ProcessMemory(pid_t pid)
    : file_(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC)) {}

bool ProcessMemory::Read(uint64_t address, void* out, size_t bytes) const {
  if (!valid() || address > static_cast<uint64_t>(std::numeric_limits<off_t>::max()) - bytes) return false;
  return ::pread(file_.get(), out, bytes, static_cast<off_t>(address)) == static_cast<ssize_t>(bytes);
}

}  // namespace cohort::launcher
