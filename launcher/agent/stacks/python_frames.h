// Reads what faulthandler writes. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::launcher {

// A dump without what differs from rank to rank, such as addresses of threads.
std::string ReadDump(const std::string& dump);

// Whether a dump has come to that thread.
bool HasThread(const std::string& dump, uint64_t thread);

// The place of the main thread in a dump, innermost frame first: "/x/train.py:30 in load_batch". At most three lines:
// the two innermost, and, where both are of Python's libraries, the innermost of the program's own. Without a thread of
// that number the last of the dump, which is the oldest. Empty: the dump has no frame of it.
std::vector<std::string> InnermostFrames(const std::string& dump, uint64_t main_thread);

}  // namespace cohort::launcher
