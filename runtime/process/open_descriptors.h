// All descriptors of this process from a number on, in a child that must not keep what it inherited.
//
// Linux 5.9 does this by one call (close_range; 5.11 for close-on-exec). Older kernels, and filters that refuse the
// call, are asked for the list in /proc/self/fd instead, and without /proc each number up to the limit is tried.
#pragma once

namespace cohort::runtime {

// Closes every descriptor >= `first`. Async-signal-safe, leaves errno alone, and needs no memory: a child may call it
// that shares its parent's.
void CloseFrom(int first);

// The same, but they are closed when this process executes a program.
void CloseOnExecFrom(int first);

}  // namespace cohort::runtime
