// The limit on open files (ulimit -n): an agent takes all that it may have, since whoever connects to it costs it some;
// its ranks keep what the user has set.
#pragma once

#include <sys/resource.h>

namespace cohort::launcher {

// Raises this process' soft limit to the hard one. Before there are threads; any number of times.
void RaiseOpenFileLimit();

// What it was before, for ranks; what it is, where it was not raised.
rlimit UsersOpenFileLimit();

}  // namespace cohort::launcher
