// The cost of the layers above the transport: whole calls over a transport in which every message has arrived already,
// and their parts alone. No other process takes part. The figures are CPU time and hardly depend on the machine's other
// work.
#pragma once

#include "tools/bench/pinned_pair.h"

namespace cohort::bench {

// A whole all-reduce of `bytes` bytes of float32 and its Wait, over the instant transport.
Statistics LayersAllReduce(size_t bytes, int calls);
// The hash of a call's signature, which every message carries.
Statistics SignatureHash(int calls);
// A black box record, begun and finished.
Statistics BlackBoxRecord(int calls);
// One read of the clock that records are stamped with.
Statistics ClockRead(int calls);

}  // namespace cohort::bench
