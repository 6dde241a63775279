// The state of one host-memory operation under way, recycled: a group's steady state allocates nothing.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/provider/state_pool.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/segment/black_box.h"

namespace cohort::comm {

// A block of at most this many bytes is moved within about a microsecond once its call need not wait, so its record may
// end `at_once`.
inline constexpr int64_t kMostBytesAtOnce = kMostShortBytes;

class Operation final : public PooledState<Operation> {
 public:
  explicit Operation(StatePool<Operation>* pool) : PooledState(pool) {}

  AcceptedCall call;
  uint64_t numbered = 0;     // the signature by which it was numbered
  uint64_t signature = 0;    // what its messages carry: the same, or with the results before it
  uint64_t deadline_ns = 0;  // steady clock; 0: its time has not begun to be watched

  runtime::AwaitedCalls awaited() const { return {call.ticket, call.ticket}; }

  // Ends the operation: the black box, the Work, and the reference that Take gave. The object may be gone afterwards.
  // `at_once`: it had not to wait, see BlackBoxWriter::Finish.
  void Finish(runtime::BlackBoxWriter& black_box, absl::Status status, bool at_once = false);
};

using OperationPool = StatePool<Operation>;
using OperationQueue = StateQueue<Operation>;

}  // namespace cohort::comm
