#include "cohort/launcher/agent/stacks/blocking_call.h"

#include <sys/syscall.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace cohort::launcher {
namespace {

struct SystemCall {
  long number;
  const char* name;
  Activity activity = Activity::kKernel;
  bool of_descriptor = false;
};

// The calls in which programs sleep.
constexpr SystemCall kSystemCalls[] = {
    {SYS_read, "read", Activity::kReads, true},
    {SYS_write, "write", Activity::kWrites, true},
    {SYS_readv, "readv", Activity::kReads, true},
    {SYS_writev, "writev", Activity::kWrites, true},
    {SYS_pread64, "pread64", Activity::kReads, true},
    {SYS_pwrite64, "pwrite64", Activity::kWrites, true},
    {SYS_openat, "openat", Activity::kReads},
    {SYS_getdents64, "getdents64", Activity::kReads, true},
    {SYS_fsync, "fsync", Activity::kWrites, true},
    {SYS_fdatasync, "fdatasync", Activity::kWrites, true},
    {SYS_flock, "flock", Activity::kLocks, true},
    {SYS_fcntl, "fcntl", Activity::kLocks, true},
    {SYS_ioctl, "ioctl", Activity::kKernel, true},
    {SYS_futex, "futex", Activity::kLocks},
    {SYS_nanosleep, "nanosleep", Activity::kSleeps},
    {SYS_clock_nanosleep, "clock_nanosleep", Activity::kSleeps},
    {SYS_ppoll, "ppoll", Activity::kReads},
    {SYS_pselect6, "pselect6", Activity::kReads},
    {SYS_epoll_pwait, "epoll_pwait", Activity::kReads},
    {SYS_recvfrom, "recvfrom", Activity::kReads, true},
    {SYS_recvmsg, "recvmsg", Activity::kReads, true},
    {SYS_sendto, "sendto", Activity::kWrites, true},
    {SYS_sendmsg, "sendmsg", Activity::kWrites, true},
    {SYS_accept, "accept", Activity::kReads, true},
    {SYS_accept4, "accept4", Activity::kReads, true},
    {SYS_connect, "connect", Activity::kReads, true},
    {SYS_wait4, "wait4", Activity::kChildren},
    {SYS_waitid, "waitid", Activity::kChildren},
    {SYS_rt_sigtimedwait, "rt_sigtimedwait", Activity::kSleeps},
    {SYS_rt_sigsuspend, "rt_sigsuspend", Activity::kSleeps},
    {SYS_io_getevents, "io_getevents", Activity::kReads},
#ifdef SYS_poll
    {SYS_poll, "poll", Activity::kReads},
    {SYS_select, "select", Activity::kReads},
    {SYS_pause, "pause", Activity::kSleeps},
    {SYS_epoll_wait, "epoll_wait", Activity::kReads},
    {SYS_open, "open", Activity::kReads},
#endif
};

}  // namespace

std::optional<BlockingCall> ParseBlockingCall(const std::string& text) {
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (end == text.c_str() || number < 0 || number == SYS_restart_syscall) return std::nullopt;
  BlockingCall call;
  call.first_argument = std::strtoull(end, nullptr, 16);
  const auto* const found = std::find_if(std::begin(kSystemCalls), std::end(kSystemCalls),
                                         [number](const SystemCall& one) { return one.number == number; });
  if (found == std::end(kSystemCalls)) {
    call.name = "system call " + std::to_string(number);
    return call;
  }
  call.name = found->name;
  call.activity = found->activity;
  call.of_descriptor = found->of_descriptor;
  return call;
}

}  // namespace cohort::launcher
