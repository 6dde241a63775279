// The limit on open files (ulimit -n): dlaunch and its agents take all that they may have, since every agent, rank and
// stranger costs them some; ranks, and whatever else they start, have what the user has set (and take more for UCX).
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace cohort::launcher {

// Raises this process' soft limit to the hard one. Before there are threads; any number of times.
void RaiseOpenFileLimit();

// What it was before, for those that we start; what it is, where it was not raised.
rlimit UsersOpenFileLimit();

// How many connections may have a place before they have shown who they are: as many as are wanted, or fewer where this
// process may have few files, so that others have theirs. `expected` are those that may well come all at once.
size_t PlacesForStrangers(size_t wanted, size_t expected);

}  // namespace cohort::launcher
