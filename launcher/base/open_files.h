// The limit on open files (ulimit -n). dlaunch and its agents raise it as far as they may, because every agent, rank
// and stranger costs them some. Ranks and other programs that they start get the user's limit, and take more for UCX.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace cohort::launcher {

// Raises this process' soft limit to the hard one. Call it before there are threads, any number of times.
void RaiseOpenFileLimit();

// Returns the limit before it was raised, for processes that we start. If it was not raised, returns the present one.
rlimit UsersOpenFileLimit();

// Returns how many connections may have a place before they have shown their identity. It is `wanted`, or fewer if this
// process may have few files, so that other users of files have theirs. `expected` connections may well come all at
// once.
size_t PlacesForStrangers(size_t wanted, size_t expected);

}  // namespace cohort::launcher
