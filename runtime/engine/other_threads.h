// Threads of this process that the program or its libraries started: they may make calls that nobody knows of yet.
#pragma once

namespace cohort::runtime {

// Whether there are threads besides the caller, Cohort's (StartThread) and the one of UCX. True also where /proc does
// not tell. Reads a few files of /proc: about 10 us for each thread, until it finds one.
bool HasOtherThreads();

}  // namespace cohort::runtime
