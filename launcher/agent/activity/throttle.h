// How long the control groups of a process have kept it from its CPUs, because they had used up their share.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::launcher {

class Throttle {
 public:
  // Finds the groups that have a limit: that of the process, and those around it. `root`: see CgroupFolder.
  explicit Throttle(pid_t process, const std::string& root = "/");

  bool limited() const { return !files_.empty(); }
  // All of them together, since they were made. A group of several CPUs counts each of them.
  uint64_t TotalNs() const;

 private:
  std::vector<std::string> files_;  // cpu.stat of each
};

// The number in the contents of cpu.stat, of either version; 0: it has none. Pure.
uint64_t ThrottledNs(const std::string& cpu_stat);

}  // namespace cohort::launcher
