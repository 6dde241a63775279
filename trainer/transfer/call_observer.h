// CallObserver stands between the collective calls of collectives.h and their start.
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

// One call, or several that are started as one. It refers to the caller's values, which last as long as OnCall.
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
  // Starts the call by calling `start` once, now or before the returned Work is done. Returns the caller's Work. It
  // runs in the caller's thread; several threads may call it at the same time.
  virtual runtime::Work OnCall(const ObservedCall& call, std::function<runtime::Work()> start) = 0;
  // `group` ends. Calls not started by then never will be, and their Works complete with kCancelled.
  virtual void OnGroupEnd(const comm::Communicator& group) { (void)group; }
};

// Sets the observer of all calls of this process, or none if `observer` is null. Returns the one before. An observer
// must live until it is replaced and every Work that it has returned is gone. Any thread may call it.
CallObserver* ExchangeCallObserver(CallObserver* observer);
// Tells the observer, if there is one, that `group` ends. Owners of groups that may go before their users call it.
void NoteGroupEnd(const comm::Communicator& group);

}  // namespace cohort::trainer
