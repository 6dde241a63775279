// Messages in both directions that start as one call: comm::Batch of sends and receives.
#pragma once

#include <memory>
#include <source_location>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/python/module/arguments.h"
#include "cohort/python/module/pending_call.h"

namespace cohort::python {

// exchange(sends, receives, timeout=600, async_op=False, stream=None) with its arguments read, ready to be started
// without the GIL. Both lists hold pairs (buffer, peer).
class PreparedExchange {
 public:
  // Needs the GIL. False: an exception is set.
  bool Read(const PassedArguments& passed);
  // Sets the work of the pending call. Without the GIL.
  void Start(comm::Communicator& communicator);

  std::unique_ptr<PendingCall>& pending() { return pending_; }
  bool async() const { return async_; }

 private:
  struct Message {
    size_t memory;  // index among the pending call's
    int peer;
    bool receives;
  };
  bool ReadMessages(PyObject* list, bool receives);

  std::unique_ptr<PendingCall> pending_ = std::make_unique<PendingCall>();
  std::vector<Message> messages_;
  comm::CallOptions options_;
  std::source_location site_;
  bool async_ = false;
};

}  // namespace cohort::python
