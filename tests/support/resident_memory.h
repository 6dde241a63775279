// How much memory a process holds at the moment.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace cohort::testing {

// In bytes; 0 for a process that has ended.
inline size_t ResidentMemory(pid_t pid) {
  size_t addresses = 0, resident = 0;
  std::ifstream("/proc/" + std::to_string(pid) + "/statm") >> addresses >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace cohort::testing
