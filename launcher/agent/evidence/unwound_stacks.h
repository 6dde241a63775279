// The frames of threads' stacks by elfutils' libdw, which is loaded where it is installed: from a snapshot, the list of
// the process' mappings and the files of its program and libraries. A build without libdw's headers has no unwinder.
#pragma once

#include <string>

#include "cohort/launcher/agent/evidence/thread_snapshot.h"

namespace cohort::launcher {

// Whether this build can use libdw, and it is installed. Loads it.
bool HasUnwinder();
// Returns the stacks as lines, innermost frame first, equal ones of a process once: "2 threads worker:", then
// "  pthread_cond_wait (libc.so.6)". Empty: nothing is known. Nothing in it differs from rank to rank.
std::string UnwindSnapshot(const ProcessSnapshot& snapshot);

}  // namespace cohort::launcher
