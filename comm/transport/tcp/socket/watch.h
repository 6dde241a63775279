// The descriptors of this transport in one epoll, each with a token. Edge-triggered: an event tells once that a socket
// has become readable or writable, so one that is left unread for a while costs nothing.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::comm::tcp {

class Watch {
 public:
  absl::Status Open();
  // Watches `descriptor` until it is closed. False where the kernel has no memory.
  bool Add(int descriptor, uint64_t token);
  // The same descriptor under another token; what is readable now is told again.
  bool Rename(int descriptor, uint64_t token);
  // Tells the tokens of what has become readable or writable since the last call, boundedly, and whether the other side
  // has ended. Does not block. Returns whether there was any.
  bool Look(const std::function<void(uint64_t token, bool ending)>& event);
  // Readable while Look would tell something.
  int descriptor() const { return epoll_.get(); }
  // Makes a sleeping owner look again. Any thread.
  void Signal();

 private:
  runtime::FileDescriptor epoll_;
  runtime::FileDescriptor signal_;  // an eventfd
};

}  // namespace cohort::comm::tcp
