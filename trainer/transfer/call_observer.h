// CallObserver: stands between the collective calls of collectives.h and their start.
#pragma once

#include <functional>
#include <source_location>
#include <span>

#include "cohort/comm/communicator.h"

namespace cohort::trainer {

struct CallBuffers {
  comm::ConstBuffer in;
  comm::Buffer out;
};

// One call, or several that are started as one. Refers to the caller's values, which last as long as OnCall.
struct ObservedCall {
  comm::Communicator& group;
  comm::CollectiveKind kind;
  const std::source_location& site;
  std::span<const CallBuffers> buffers;
  double sent_bytes;  // by this rank, with the best algorithm for large messages
};

class CallObserver {
 public:
  virtual ~CallObserver() = default;
  // Starts the call by calling `start` once, now or before the returned Work is done, and returns the Work of the
  // caller. Called in the caller's thread; several threads may call at a time.
  virtual runtime::Work OnCall(const ObservedCall& call, std::function<runtime::Work()> start) = 0;
  // `group` ends: calls that were not started never will be. Their Works complete with kCancelled.
  virtual void OnGroupEnd(const comm::Communicator& group) { (void)group; }
};

// Makes `observer` that of all calls of this process, or none where it is null; returns the one before. It lives until
// it is replaced and every Work that it has returned is gone. Any thread.
CallObserver* ExchangeCallObserver(CallObserver* observer);
// Tells the observer, if there is one, that `group` ends. Called by owners of groups that may go before their users.
void NoteGroupEnd(const comm::Communicator& group);

}  // namespace cohort::trainer
