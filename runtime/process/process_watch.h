// ProcessWatch: whether a process has ended, child or not, without its number being mistaken for a later process'.
//
// Linux 5.3 has a descriptor that is readable when the process has ended (pidfd_open). Where the kernel is older, a
// filter refuses the call, or no descriptor is left, the watch looks in /proc instead: then it has no descriptor, and
// a caller that sleeps looks every `kLook`.
#pragma once

#include <chrono>
#include <cstdint>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::runtime {

class ProcessWatch {
 public:
  // How often to look where there is no descriptor.
  static constexpr std::chrono::milliseconds kLook{20};

  // No process.
  ProcessWatch() = default;
  // `pid` may be gone already, which valid() says.
  explicit ProcessWatch(int pid);

  // False where there was no such process at the start. A child that nobody has waited for is one.
  bool valid() const { return pid_ != 0; }
  // For poll(): readable when the process has ended. -1: there is none, so poll no longer than poll_limit_ms() and ask
  // Ended().
  int fd() const { return descriptor_.get(); }
  // -1 with a descriptor, or without a process.
  int poll_limit_ms() const { return valid() && !descriptor_.valid() ? static_cast<int>(kLook.count()) : -1; }

  // Never blocks. True for no process.
  bool Ended() const;
  // Blocks for `limit` at most. Whether the process has ended.
  bool WaitForEnd(std::chrono::milliseconds limit) const;

  // Gives the descriptor, if there is one, the number `number`; what was there is closed.
  void MoveDescriptorTo(int number);

 private:
  int pid_ = 0;
  FileDescriptor descriptor_;
  uint64_t start_time_ = 0;  // without a descriptor
};

}  // namespace cohort::runtime
