// The states of a process' threads, as the kernel tells them.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace cohort::launcher {

// A line for each different state, the main thread's first: "sleeps in futex", "3 threads named worker: run". What the
// kernel does not tell is left out. Reads /proc only; at most 256 threads are looked at. Empty: there is no such
// process.
std::vector<std::string> DescribeThreads(pid_t pid);

}  // namespace cohort::launcher
