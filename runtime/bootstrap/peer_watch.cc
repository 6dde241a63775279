#include "cohort/runtime/bootstrap/peer_watch.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/thread.h"

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

constexpr uint64_t kExiting = 0x4;     // PF_EXITING
constexpr uint64_t kSignaled = 0x400;  // PF_SIGNALED

struct ProcessStat {
  bool ended = false;  // a zombie
  uint64_t flags = 0;
  int exit_code = 0;  // as wait() gives it; valid when ended
};

std::optional<ProcessStat> ReadStat(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  // Behind the name, which may hold anything, comes field 3, the state; 9 are the flags, 52 is the exit code.
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end + 1));
  ProcessStat stat;
  std::string field;
  for (int number = 3; fields >> field; ++number) {
    if (number == 3) stat.ended = field == "Z" || field == "X";
    if (number == 9) stat.flags = std::strtoull(field.c_str(), nullptr, 10);
    if (number == 52) stat.exit_code = std::atoi(field.c_str());
  }
  return stat;
}

std::string DescribeEnd(int exit_code) {
  if (!WIFSIGNALED(exit_code)) return "exited with status " + std::to_string(WEXITSTATUS(exit_code));
  const char* name = sigabbrev_np(WTERMSIG(exit_code));
  return "killed by SIG" + std::string(name == nullptr ? "?" : name);
}

// The process is a zombie, or its parent has already asked how it ended: then newer kernels still tell.
std::string CauseOf(int pid, int pidfd) {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  const std::optional<ProcessStat> stat = ReadStat(pid);
  if (stat.has_value() && stat->ended) return DescribeEnd(stat->exit_code);
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
  pidfds_.resize(pids.size());
  gone_.resize(pids.size());
  for (size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] == 0) continue;
    pidfds_[i] = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pids[i], 0)));
    gone_[i] = !pidfds_[i].valid() && errno == ESRCH;
    if (!pidfds_[i].valid() && !gone_[i]) return ErrnoStatus(errno, "cannot watch process " + std::to_string(pids[i]));
  }
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
  for (size_t i = 0; i < gone_.size(); ++i) {
    if (gone_[i]) on_end_(static_cast<int>(i), "ended");
  }
  // The last entry is `stop_`; poll ignores negative descriptors.
  std::vector<pollfd> entries;
  for (const FileDescriptor& pidfd : pidfds_) entries.push_back(pollfd{pidfd.get(), POLLIN, 0});
  entries.push_back(pollfd{stop_.get(), POLLIN, 0});
  while (true) {
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries.back().revents != 0) return;
    for (size_t i = 0; i + 1 < entries.size(); ++i) {
      if (entries[i].fd < 0 || entries[i].revents == 0) continue;
      const std::string cause = CauseOf(pids_[i], entries[i].fd);
      entries[i].fd = -1;
      on_end_(static_cast<int>(i), cause);
    }
  }
}

bool IsExiting(int pid) {
  const std::optional<ProcessStat> stat = ReadStat(pid);
  return !stat.has_value() || stat->ended || (stat->flags & (kExiting | kSignaled)) != 0;
}

}  // namespace cohort::runtime
