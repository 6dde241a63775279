// The states of a process' threads, as the kernel tells them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cohort::launcher {

inline constexpr size_t kMaxThreadsDescribed = 256;

// A line for each different state, the main thread's first: "python3 sleeps in futex", "3 times: worker runs". What the
// kernel does not tell is left out. Reads /proc only; the first `most` threads are looked at. Empty: there is no such
// process.
std::vector<std::string> DescribeThreads(pid_t pid, size_t most = kMaxThreadsDescribed);

}  // namespace cohort::launcher
