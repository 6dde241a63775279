#include "cohort/runtime/process/process_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "cohort/runtime/process/process_stat.h"

namespace cohort::runtime {

ProcessWatch::ProcessWatch(int pid) : descriptor_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {
  if (descriptor_.valid()) {
    pid_ = pid;
    return;
  }
  if (errno == ESRCH) return;
  const std::optional<ProcessState> state = ReadProcessState(pid);
  if (!state.has_value()) return;
  pid_ = pid;
  start_time_ = state->start_time;
}

bool ProcessWatch::Ended() const {
  if (!valid()) return true;
  if (descriptor_.valid()) {
    pollfd end{descriptor_.get(), POLLIN, 0};
    return poll(&end, 1, 0) > 0;
  }
  const std::optional<ProcessState> state = ReadProcessState(pid_);
  return !state.has_value() || state->ended() || state->start_time != start_time_;
}

bool ProcessWatch::WaitForEnd(std::chrono::milliseconds limit) const {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!Ended()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd end{descriptor_.get(), POLLIN, 0};  // -1 is passed over
    poll(&end, 1, static_cast<int>((descriptor_.valid() ? left : std::min(left, kLook)).count()));
  }
  return true;
}

void ProcessWatch::MoveDescriptorTo(int number) {
  if (!descriptor_.valid() || descriptor_.get() == number) return;
  if (dup2(descriptor_.get(), number) == number) descriptor_ = FileDescriptor(number);
}

}  // namespace cohort::runtime
