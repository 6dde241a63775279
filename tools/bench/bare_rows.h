// A bare all-reduce: only its copies, its sums and a flag for each message. It has no transport, no plan, no
// communicator, no signature. The same algorithm can hardly do better.
#pragma once

#include "tools/bench/pinned_pair.h"

namespace cohort::bench {

// All-reduce of `bytes` bytes of float32 in private memory: each rank copies the other's half of its input into a
// ring, adds what the other has put there to its own half, and the sums go the same way. In messages of `chunk` bytes,
// which divides bytes / 2; 128 KiB of ring in each direction, so `bytes` is 256 KiB at the most.
Statistics BareAllReduce(size_t bytes, size_t chunk, int calls);
// The same in windows, by single copies: each rank adds one half of both inputs, and stores it in both outputs.
Statistics BareWindowAllReduce(size_t bytes, int calls);

}  // namespace cohort::bench
