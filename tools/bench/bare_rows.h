// What is left of an all-reduce when everything is taken away but its copies, its sums and a flag for each message:
// no transport, no plan, no communicator, no signature. Below that no implementation of the same algorithm gets.
#pragma once

#include "tools/bench/pinned_pair.h"

namespace cohort::bench {

// All-reduce of `bytes` bytes of float32 in private memory: each rank copies the other's half of its input into a
// ring, adds what the other has put there to its own half, and the sums go the same way. In messages of `chunk` bytes,
// which divides bytes / 2; 128 KiB of ring in each direction.
Statistics BareAllReduce(size_t bytes, size_t chunk, int calls);
// The same where inputs are in windows: each rank reads the other's whole input where it lies.
Statistics BareWindowAllReduce(size_t bytes, int calls);

}  // namespace cohort::bench
