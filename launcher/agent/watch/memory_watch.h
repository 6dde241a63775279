// Whether the kernel has just killed something for want of memory: a SIGKILL says nothing of its sender, but the kernel
// counts those that it sends for this reason, for each cgroup and for the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cohort::launcher {

class MemoryWatch {
 public:
  // The files that are read, where `root` stands for "/": proc/vmstat, and of this process' cgroup (version 2, else 1)
  // memory.events or memory.oom_control, and the limit. What is missing is done without. `cgroup`: the folder of one
  // that is looked at instead, where the kernel counts for it.
  explicit MemoryWatch(const std::string& root = "/", const std::string& cgroup = "");

  // Call every second or so: Verdict reports what has come after the last call but one. About 30 us.
  void Look();

  // "out of memory (limit of its cgroup: 512 MiB)" where the count of the cgroup has grown, "most likely out
  // of memory: ..." where only the machine's has (in a container that may be another's), else empty.
  std::string Verdict() const;

 private:
  struct Counts {
    std::optional<uint64_t> cgroup;
    std::optional<uint64_t> machine;
  };
  Counts Read() const;

  std::string machine_file_;
  std::string cgroup_file_;
  std::string limit_file_;
  Counts before_;
  Counts latest_;
};

}  // namespace cohort::launcher
