#include "cohort/runtime/bootstrap/peer_watch.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/thread.h"
#include "cohort/runtime/process/process_stat.h"

namespace cohort::runtime {
namespace {

// linux/pidfd.h of Linux 6.15, which build machines need not have: how a process ended that is no child.
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroup_id;
  uint32_t ids[11];
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr uint64_t kPidfdInfoExit = 1u << 3;
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);  // NOLINT(google-runtime-int): ioctl's type

std::string DescribeEnd(int exit_code) {
  if (!WIFSIGNALED(exit_code)) return "exited with status " + std::to_string(WEXITSTATUS(exit_code));
  const char* name = sigabbrev_np(WTERMSIG(exit_code));
  return "killed by SIG" + std::string(name == nullptr ? "?" : name);
}

// The process is a zombie, or its parent has already asked how it ended: then newer kernels still tell.
std::string CauseOf(int pid, int pidfd) {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  const std::optional<ProcessState> state = ReadProcessState(pid);
  if (state.has_value() && state->ended()) return DescribeEnd(state->exit_status);
  if (ioctl(pidfd, kPidfdGetInfo, &info) == 0 && (info.mask & kPidfdInfoExit) != 0) return DescribeEnd(info.exit_code);
  return "ended";
}

}  // namespace

PeerWatch::~PeerWatch() { Stop(); }

absl::Status PeerWatch::Start(const std::vector<int>& pids, OnEnd on_end) {
  pids_ = pids;
  on_end_ = std::move(on_end);
  stop_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) return ErrnoStatus(errno, "cannot watch this node's ranks");
  for (const int pid : pids) watches_.push_back(pid == 0 ? ProcessWatch() : ProcessWatch(pid));
  thread_ = StartThread("cohort-watch", [this] { Main(); });
  return absl::OkStatus();
}

void PeerWatch::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void PeerWatch::Main() {
  // Entries of those that have ended, or never were, are passed over; the last is `stop_`.
  std::vector<pollfd> entries(watches_.size() + 1);
  entries.back() = pollfd{stop_.get(), POLLIN, 0};
  while (entries.back().revents == 0) {
    int limit_ms = -1;
    for (size_t i = 0; i < watches_.size(); ++i) {
      if (pids_[i] != 0 && watches_[i].Ended()) {
        const std::string cause = watches_[i].valid() ? CauseOf(pids_[i], watches_[i].fd()) : "ended";
        pids_[i] = 0;
        on_end_(static_cast<int>(i), cause);
      }
      entries[i] = pollfd{pids_[i] == 0 ? -1 : watches_[i].fd(), POLLIN, 0};
      if (pids_[i] != 0 && watches_[i].poll_limit_ms() >= 0) limit_ms = watches_[i].poll_limit_ms();
    }
    if (poll(entries.data(), entries.size(), limit_ms) < 0 && errno != EINTR) return;
  }
}

bool IsExiting(int pid) {
  const std::optional<ProcessState> state = ReadProcessState(pid);
  return !state.has_value() || state->ended() || (state->flags & (kExitingFlag | kKilledBySignalFlag)) != 0;
}

}  // namespace cohort::runtime
