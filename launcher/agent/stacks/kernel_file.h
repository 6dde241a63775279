// Small files of the kernel's, in /proc or a cgroup.
#pragma once

#include <string>

namespace cohort::launcher {

// The whole text; empty where the file is absent or cannot be read, as with a process that has ended. The kernel makes
// the text while it is read: that takes microseconds as a rule. It blocks where the kernel needs memory that is in
// swap, as for /proc/PID/cmdline, or a lock that a process holds while it waits for its own.
std::string ReadKernelFile(const std::string& path);

}  // namespace cohort::launcher
