// clone3 of the kernel, whose structure in linux/sched.h can't be included beside sched.h everywhere.
#pragma once

#include <csignal>
#include <cstdint>

namespace cohort::launcher {

// clone_args of linux/sched.h, up to `cgroup` (Linux 5.7).
struct CloneArguments {
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

// Arguments for a child that is made as by fork, with SIGCHLD at its end: in the cgroup whose folder this descriptor is
// of, or in the caller's for -1.
inline CloneArguments CloneInto(int cgroup) {
  constexpr uint64_t kIntoCgroup = uint64_t{1} << 33;  // CLONE_INTO_CGROUP
  CloneArguments arguments{};
  arguments.exit_signal = SIGCHLD;
  if (cgroup < 0) return arguments;
  arguments.flags = kIntoCgroup;
  arguments.cgroup = static_cast<uint64_t>(cgroup);
  return arguments;
}

}  // namespace cohort::launcher
