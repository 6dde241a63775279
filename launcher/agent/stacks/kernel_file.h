// Small files of the kernel's, in /proc or a cgroup.
#pragma once

#include <string>

namespace cohort::launcher {

// The whole text; empty where the file is absent or cannot be read, as with a process that has ended. The kernel makes
// the text while it is read, so this does not wait for a disk.
std::string ReadKernelFile(const std::string& path);

}  // namespace cohort::launcher
